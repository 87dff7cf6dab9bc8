"""What ``--json`` prints, as JSON schemas: one for each command, made here and nowhere else.

``blobsync schema COMMAND`` prints one, the documentation site has a page and a file of each, and the tests hold every
document that they see to its own. A key that is not named here is a mistake: schemas are closed.
"""
