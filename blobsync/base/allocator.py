"""How the C library keeps the memory that this process has freed."""

from __future__ import annotations

from contextlib import suppress

# Options of glibc's mallopt: https://man7.org/linux/man-pages/man3/mallopt.3.html, numbers from <malloc.h>.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# Larger than any buffer of a transfer; all of them together are at most half as large as what is kept (bytes).
_LARGEST_BUFFER = 32 << 20
_KEPT = 256 << 20


def keep_freed_memory() -> None:
    """Have glibc keep freed buffers for the next ones, for all threads together; does nothing with another C library.

    It returns buffers of about a MiB to the system at once, and the system clears each new one page by page. For
    processes of our own only, before their threads start: it counts for all that runs in the process.
    """
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # late: some Pythons are built without it

        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_TRIM_THRESHOLD, _KEPT), (_MMAP_THRESHOLD, _LARGEST_BUFFER), (_ARENA_MAX, 1)):
            mallopt(option, value)
