"""What each engine costs, fitted by ``python -m benchmarks.engine_fit --write``, which writes this file.

By engine, direction and TLS: seconds of CPU for the start, for a file, and for a byte. ``azcopy`` is what azcopy itself
costs, on all cores; ``around`` is what blobsync does for it meanwhile: hashing, checking, recording.
"""

from __future__ import annotations

COSTS: dict[tuple[str, str, bool], tuple[float, float, float]] = {
    ("direct", "up", False): (0.30, 0.288e-3, 4.20e-9),
    ("azcopy", "up", False): (0.10, 0.385e-3, 2.84e-9),
    ("around", "up", False): (0.23, 0.202e-3, 5.01e-9),
    ("direct", "down", False): (0.30, 0.3e-3, 3.0e-9),
    ("azcopy", "down", False): (0.10, 0.3e-3, 2.5e-9),
    ("around", "down", False): (0.23, 0.3e-3, 2.0e-9),
    ("direct", "up", True): (0.30, 0.3e-3, 4.5e-9),
    ("azcopy", "up", True): (0.10, 0.4e-3, 3.0e-9),
    ("around", "up", True): (0.23, 0.2e-3, 1.7e-9),
    ("direct", "down", True): (0.30, 0.35e-3, 3.5e-9),
    ("azcopy", "down", True): (0.10, 0.4e-3, 3.0e-9),
    ("around", "down", True): (0.23, 0.3e-3, 2.0e-9),
}
