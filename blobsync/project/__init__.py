"""The public face: a project, and what can be asked of it and done with its data.

Decides nothing; connects the rooms (``api.Project``, ``engine_set``, ``jobs``), and holds what reads
both sides without a transfer: ``browse``, ``verify``, ``doctor``, ``sharing``, ``removal``. In: paths and
options. Out: plans, results and reports. Calls every room but ``cli``.
"""
