"""Where ``blobsync`` begins, also as ``python -m blobsync``."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from io import TextIOWrapper


def main() -> int:
    """Run one command and end the process; returns the exit code only where threads have to be waited for."""
    code = 130
    try:
        code = run()
        end(code)
    except KeyboardInterrupt:
        # More signals while the result was told, as at the end of a terminal: each kind that waits is raised by itself.
        try:
            end(code)
        except KeyboardInterrupt:
            end(code)
    return code


def run() -> int:
    """Run one command; returns the exit code."""
    try:
        lost: list[bool] = []
        # Python drops the exception of a callback, which loading a module has: a Ctrl-C there would be lost.
        sys.unraisablehook = lambda dropped: lost.append(dropped.exc_type is KeyboardInterrupt)
        # A plan of a million files is millions of objects that live until the end: scanning all of them for
        # cycles again and again would take longer than creating them. So it is with modules, a tenth of a short
        # command's time. Young objects are still collected.
        gc.set_threshold(100_000, 50, 1000)
        _complete_streams()
        from blobsync.base.stopping import hold_ctrl_c

        hold_ctrl_c()
        sys.unraisablehook = sys.__unraisablehook__
        if any(lost):
            raise KeyboardInterrupt
    except (KeyboardInterrupt, RuntimeError):
        # Python 3.10 and 3.11 make a RuntimeError of a Ctrl-C while a class is made.
        sys.stderr.write("blobsync: interrupted\n")
        return 130
    from blobsync.cli.main import main as run_command

    return run_command()


def _complete_streams() -> None:
    """Open what the caller has closed (``>&-``), and let no character that an encoding does not have end a command."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Else the next file that is opened, a database perhaps, gets the number of standard error.
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - it stays open
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=errors)


def end(code: int) -> None:
    """End the process without taking its modules apart, which takes a thirtieth of a short command; returns if threads
    have to be waited for.

    After a failure daemon threads may wait for a server. Python's own end, and that of OpenSSL, frees what they use: in
    one of some thousand commands that ended with a segmentation fault, and not with their exit code.
    """
    import threading

    from blobsync.base.stopping import end_at_signals, hear_no_more

    hear_no_more()
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        return
    atexit._run_exitfuncs()
    end_at_signals()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        # Python says what is wrong with them.
        return
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
