"""The Python API: ``api.Project``, and the calls behind it.

``api`` connects the other packages (with ``engine_set``, ``spreading`` and ``jobs``). Calls without a transfer have a
module each: ``browse``, ``verify``, ``doctor``, ``sharing``, ``removal``. In: paths and options. Out: plans, results
and reports. Imports every package but ``web`` and ``cli``.
"""
