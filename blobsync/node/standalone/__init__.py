"""Files that run alone, as texts, where nothing else of blobsync is: on nodes and login nodes, with an old Python.

``bootstrap`` and ``old_python`` fetch the node archive and find a Python for it; ``interactive`` waits on a node for
people; ``login_side`` reads and writes files on a login node; ``beside_side`` runs a program beside a job. Standard
library only; their names are in the folders of jobs, and stay.
"""
