"""A transfer's own process: makes the plan anew, carries it out if it is still the same, and tells how it goes.

The page must stay quick while files are hashed, and a transfer is stopped as Ctrl-C stops it, which is for the main
thread of a process only. The order is one line of JSON on standard input. The answers are lines of JSON: ``progress``,
``note``, and at the end ``ended`` or ``failed``. Any other line stops it, and so does
the end of standard input: whoever asked is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from blobsync.base.errors import BlobsyncError, TransferCancelledError
from blobsync.base.events import Event, Note, together
from blobsync.base.failure_codes import ExitCode, FileFailure
from blobsync.base.plain_json import parse_object
from blobsync.base.redaction import redact, redact_tree
from blobsync.plan.progress import Progress
from blobsync.plan.saved_plan import SavedPlan
from blobsync.plan.transfer_plan import TransferResult
from blobsync.project.api import Project
from blobsync.project.progress_listeners import CallbackListener

# How many failures are told one by one; the receipt and the history have all.
_TOLD = 200
_NAME = Path("the plan")

Tell = Callable[[Mapping[str, Any]], None]


class TellingListener:
    """Sends notes to whoever asked."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell

    def emit(self, event: Event) -> None:
        if isinstance(event, Note):
            self._tell({"note": redact(event.text)})


def carry_order(order: Mapping[str, Any], tell: Tell) -> None:
    """Do what the order says. Raises ``BlobsyncError``, also for a plan that would do something else by now."""
    with Project.open(
        order["folder"],
        cluster=order["cluster"],
        from_cluster=order["from_cluster"],
        overrides=order["overrides"] or None,
    ) as project:

        def on_progress(progress: Progress) -> None:
            tell({"progress": asdict(progress)})

        listener = CallbackListener(on_progress)
        project.listener = together(TellingListener(tell), listener)
        plan = project.load_plan(SavedPlan(order["plan"], _NAME))
        plan.demand_allowed()
        result = project.carry_out(plan)
        listener.close()
        tell({"ended": _result(result)})


def _result(result: TransferResult) -> dict[str, Any]:
    return {
        "transferred": result.transferred,
        "verified": result.verified,
        "deleted": result.deleted,
        "bytes": result.bytes_transferred,
        "reused": result.bytes_reused,
        "seconds": round(result.seconds, 3),
        "failed": len(result.failures),
        "conflicts": len(result.conflicts),
        "failures": [_failure(each) for each in result.failures[:_TOLD]],
        "exit_code": int(result.exit_code),
    }


def _failure(failure: FileFailure | BlobsyncError) -> dict[str, Any]:
    told = {"message": redact(failure.message), "hint": redact(failure.hint or ""), "path": failure.path}
    return {**told, "path": redact_tree(failure.path)}


def main() -> NoReturn:
    """One order, then the end."""
    # The server may have been started by nohup or a shell's `&`, which ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out, sys.stdout = sys.stdout, sys.stderr
    writing = threading.Lock()

    def tell(answer: Mapping[str, Any]) -> None:
        # Whoever asked may be gone; the transfer then stops, and cleans up first.
        with writing, suppress(OSError):
            out.write(json.dumps(answer) + "\n")
            out.flush()

    code = ExitCode.DONE
    try:
        order = parse_object(sys.stdin.readline())
        threading.Thread(target=_stop_when_told, daemon=True).start()
        carry_order(order, tell)
    except TransferCancelledError as stop:
        tell(
            {
                "failed": {"message": redact(stop.message), "hint": redact(stop.hint or ""), "path": None},
                "stopped": True,
            }
        )
    except KeyboardInterrupt:
        tell({"failed": {"message": "stopped before anything was changed", "hint": "", "path": None}, "stopped": True})
    except BlobsyncError as error:
        tell({"failed": _failure(error), "stopped": False})
    except Exception as error:  # noqa: BLE001 - the page shows it
        said = f"a bug in blobsync: {type(error).__name__}: {redact(str(error))}"
        tell({"failed": {"message": said, "hint": "please report it", "path": None}, "stopped": False})
        code = ExitCode.FAILED
    # Threads that still wait for the network must not keep the process.
    os._exit(code)


def _stop_when_told() -> None:
    sys.stdin.readline()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


if __name__ == "__main__":
    main()
