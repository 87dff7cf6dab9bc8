"""Programs that run without blobsync installed, on nodes and login nodes, with an old Python.

``bootstrap`` and ``old_python`` fetch the node archive and find a Python for it; ``interactive`` keeps an interactive
job's node: jobs' folders contain these under their names, which must not change. ``login_node_files`` reads and writes
files on a login node, ``tensorboard_jupyter`` runs a program beside a job. Standard library only.
"""
