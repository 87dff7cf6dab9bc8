"""The public face: a project, and what can be asked of it and done with its data.

Decides nothing of its own; it puts the rooms together (``api.Project``, ``engine_set``, ``jobs``), and holds what looks
at both sides without moving anything: ``browse``, ``verify``, ``doctor``, ``sharing``, ``removal``. In: paths and
options. Out: plans, results and reports. Calls every room but ``cli``.
"""
