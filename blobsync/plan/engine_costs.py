"""The costs of each engine, fitted by ``python -m benchmarks.engine_fit --write``, which writes this file.

By engine, direction and TLS: seconds of CPU for the start, for a file, and for a byte. ``azcopy`` is the cost of azcopy
itself, on all cores; ``around`` that of blobsync's work for it: hashing, checking, recording.
"""

from __future__ import annotations

COSTS: dict[tuple[str, str, bool], tuple[float, float, float]] = {
    ("direct", "up", False): (0.19, 0.239e-3, 3.18e-9),
    ("azcopy", "up", False): (0.08, 0.219e-3, 2.76e-9),
    ("around", "up", False): (0.20, 0.460e-3, 3.61e-9),
    ("direct", "down", False): (0.18, 0.278e-3, 2.79e-9),
    ("azcopy", "down", False): (0.08, 0.284e-3, 2.37e-9),
    ("around", "down", False): (0.21, 0.402e-3, 0.00e-9),
    ("direct", "up", True): (0.17, 0.295e-3, 3.15e-9),
    ("azcopy", "up", True): (0.10, 0.237e-3, 2.99e-9),
    ("around", "up", True): (0.18, 0.433e-3, 1.43e-9),
    ("direct", "down", True): (0.21, 0.358e-3, 3.04e-9),
    ("azcopy", "down", True): (0.12, 0.290e-3, 3.69e-9),
    ("around", "down", True): (0.26, 0.310e-3, 0.00e-9),
}
