"""The code archive: what ``init`` packs and uploads.

Decides which files are code, which of them may hold secrets, and whether anything changed. In: a project, as
``project_code.CodeProject`` describes it. Out: an archive with a digest, in the container. Calls the packages above
except the engines.
"""
