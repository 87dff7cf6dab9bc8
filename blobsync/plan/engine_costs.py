"""The costs of each engine, fitted by ``python -m benchmarks.engine_fit --write``, which writes this file.

By engine, direction and TLS: seconds of CPU for the start, for a file, and for a byte. ``azcopy`` is the cost of azcopy
itself, on all cores; ``around`` that of blobsync's work for it: hashing, checking, recording.
"""

from __future__ import annotations

COSTS: dict[tuple[str, str, bool], tuple[float, float, float]] = {
    ("direct", "up", False): (0.32, 0.421e-3, 4.63e-9),
    ("azcopy", "up", False): (0.14, 0.333e-3, 3.70e-9),
    ("around", "up", False): (0.29, 0.424e-3, 3.09e-9),
    ("direct", "down", False): (0.26, 0.389e-3, 3.45e-9),
    ("azcopy", "down", False): (0.14, 0.386e-3, 2.61e-9),
    ("around", "down", False): (0.29, 0.318e-3, 0.00e-9),
    ("direct", "up", True): (0.28, 0.596e-3, 5.05e-9),
    ("azcopy", "up", True): (0.13, 0.468e-3, 3.43e-9),
    ("around", "up", True): (0.31, 0.352e-3, 3.29e-9),
    ("direct", "down", True): (0.36, 0.591e-3, 3.81e-9),
    ("azcopy", "down", True): (0.21, 0.489e-3, 3.43e-9),
    ("around", "down", True): (0.43, 0.294e-3, 0.00e-9),
}
