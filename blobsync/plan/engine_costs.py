"""What each engine costs, fitted by ``python -m benchmarks.engine_fit --write``, which writes this file.

By engine, direction and TLS: seconds of CPU for the start, for a file, and for a byte. ``azcopy`` is what azcopy itself
costs, on all cores; ``around`` is what blobsync does for it meanwhile: hashing, checking, recording.
"""

from __future__ import annotations

# Measured once, on a busy machine. There direct's threads, which wait for one lock, took 1.068, 0.687 and 0.845 ms for
# a file down, up over TLS and down over TLS; those three are set by hand until the command runs on a quiet machine.
COSTS: dict[tuple[str, str, bool], tuple[float, float, float]] = {
    ("direct", "up", False): (0.19, 0.429e-3, 4.81e-9),
    ("azcopy", "up", False): (0.11, 0.328e-3, 2.70e-9),
    ("around", "up", False): (0.26, 0.305e-3, 3.98e-9),
    ("direct", "down", False): (0.27, 0.500e-3, 3.44e-9),
    ("azcopy", "down", False): (0.12, 0.429e-3, 4.35e-9),
    ("around", "down", False): (0.34, 0.544e-3, 0.81e-9),
    ("direct", "up", True): (0.24, 0.500e-3, 5.70e-9),
    ("azcopy", "up", True): (0.10, 0.373e-3, 3.82e-9),
    ("around", "up", True): (0.31, 0.431e-3, 3.51e-9),
    ("direct", "down", True): (0.29, 0.600e-3, 3.31e-9),
    ("azcopy", "down", True): (0.13, 0.497e-3, 5.16e-9),
    ("around", "down", True): (0.33, 0.676e-3, 0.00e-9),
}
