"""What ``--json`` prints, as JSON schemas: one for each command, made here and nowhere else.

``blobsync schema COMMAND`` prints one, the documentation site has a page and a file for each, and the tests check every
document against its schema. Schemas are closed: no document has other keys.
"""
