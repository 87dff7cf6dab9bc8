"""The Python API: ``api.Project``, and the calls behind it.

``api`` connects the rooms (with ``engine_set``, ``spreading`` and ``jobs``) and decides nothing itself. What reads both
sides without a transfer has a module each: ``browse``, ``verify``, ``doctor``, ``sharing``, ``removal``. In: paths and
options. Out: plans, results and reports. Imports every room but ``web`` and ``cli``.
"""
