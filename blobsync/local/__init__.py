"""Files of this machine.

Decides which names may become paths (``names``, the only gate), which entries of a tree are files (``tree``), what
ignore files exclude, how a file appears whole or not at all, and where the project's own records are. In: paths
and bytes. Out: states of files, descriptors below their root. Calls ``base`` and ``config``.
"""
