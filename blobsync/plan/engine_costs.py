"""The costs of each engine, fitted by ``python -m benchmarks.engine_fit --write``, which writes this file.

By engine, direction and TLS: seconds of CPU for the start, for a file, and for a byte. ``azcopy`` is the cost of azcopy
itself, on all cores; ``around`` that of blobsync's work for it: hashing, checking, recording.
"""

from __future__ import annotations

COSTS: dict[tuple[str, str, bool], tuple[float, float, float]] = {
    ("direct", "up", False): (0.17, 0.293e-3, 3.34e-9),
    ("azcopy", "up", False): (0.09, 0.233e-3, 2.72e-9),
    ("around", "up", False): (0.22, 0.529e-3, 3.20e-9),
    ("direct", "down", False): (0.16, 0.297e-3, 2.44e-9),
    ("azcopy", "down", False): (0.07, 0.267e-3, 2.00e-9),
    ("around", "down", False): (0.22, 0.307e-3, 0.08e-9),
    ("direct", "up", True): (0.19, 0.245e-3, 3.43e-9),
    ("azcopy", "up", True): (0.09, 0.285e-3, 3.63e-9),
    ("around", "up", True): (0.24, 0.444e-3, 0.72e-9),
    ("direct", "down", True): (0.19, 0.361e-3, 3.16e-9),
    ("azcopy", "down", True): (0.11, 0.349e-3, 3.23e-9),
    ("around", "down", True): (0.23, 0.324e-3, 0.00e-9),
}
