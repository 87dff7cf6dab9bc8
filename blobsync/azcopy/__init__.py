"""azcopy as an engine: a managed, confined subprocess.

Decides which azcopy runs, with which arguments, and how to check its results: none is used unchecked.
In: the files of one part of a plan. Out: a report of each file. Calls ``transfer``, and ``direct``
for files that azcopy damaged.
"""
