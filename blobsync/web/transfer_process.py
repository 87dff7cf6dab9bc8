"""The process of a transfer that was started on the page: carries out the plan that the page has shown.

The page stays quick while files are hashed, and a transfer stops as after Ctrl-C, which only the main thread of a
process can do. Standard input has one line of JSON (how to open the project), then the plan itself, so that nothing is
listed or hashed a second time: see :func:`plan_lines`. Standard output has lines of JSON: ``progress``, ``note``, and
at the end ``ended`` or ``failed``. A line ``stop``, or the end of standard input with the server, stops the transfer.

Files that changed after the plan was made are not replaced: the engines and ``transfer.carry_out`` check each of them.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, NoReturn

from blobsync.base.errors import BlobsyncError, FileFailure, TransferCancelledError
from blobsync.base.events import NoteListener, together
from blobsync.base.exit_codes import ExitCode
from blobsync.base.plain_json import parse_object
from blobsync.base.redaction import redact, redact_tree
from blobsync.local.sorted_runs import Spill
from blobsync.plan.progress import Progress
from blobsync.plan.transfer_plan import Actions, TransferPlan, batches_of
from blobsync.plan.transfer_result import TransferResult
from blobsync.project.api import Project, spill_of
from blobsync.project.progress_listeners import CallbackListener

# Failures that the page shows one by one; the receipt and the history have all.
_MOST_FAILURES = 200
# Files in one line of a plan.
_FILES_A_LINE = 5000
_STOP = "stop"

Answer = Callable[[Mapping[str, Any]], None]


def plan_lines(plan: TransferPlan) -> Iterator[str]:
    """The plan as lines for :func:`read_plan`: the plan without its files, then batches of files, then an empty line.

    Only for a pipe between two processes of this program. A plan on the disk is read batch by batch, and never as a
    whole in memory; like every plan, it has no secrets.
    """
    yield _encoded(replace(plan, parts=tuple(replace(part, actions=()) for part in plan.parts)))
    for number, part in enumerate(plan.parts):
        for batch in batches_of(part.actions, _FILES_A_LINE):
            yield _encoded((number, batch))
    yield ""


def read_plan(read_line: Callable[[], str], spill: Spill) -> TransferPlan:
    """The plan of :func:`plan_lines`; a large one is on the disk, as ``spill`` says.

    Raises ``KeyboardInterrupt`` if the transfer is stopped before the plan is complete.
    """
    plan: TransferPlan = _decoded(_line(read_line))
    actions = [Actions(spill) for _ in plan.parts]
    while line := _line(read_line):
        number, batch = _decoded(line)
        actions[number].extend(batch)
    parts = zip(plan.parts, actions, strict=True)
    return replace(plan, parts=tuple(replace(part, actions=found) for part, found in parts))


def _line(read_line: Callable[[], str]) -> str:
    line = read_line()
    # At the end of the input there is no line, not even an empty one.
    if not line.endswith("\n") or line.strip() == _STOP:
        raise KeyboardInterrupt
    return line.strip()


def _encoded(value: object) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def _decoded(line: str) -> Any:
    return pickle.loads(base64.b64decode(line))  # noqa: S301 - from the process that started this one, by its pipe


def carry_order(order: Mapping[str, Any], read_line: Callable[[], str], answer: Answer) -> None:
    """Open the project as ``order`` says, read the plan, and carry it out. Raises ``BlobsyncError``."""
    with Project.open(
        order["folder"],
        cluster=order["cluster"],
        from_cluster=order["from_cluster"],
        overrides=order["overrides"] or None,
    ) as project:
        plan = read_plan(read_line, spill_of(project.state, project.environ))
        threading.Thread(target=_stop_on_request, daemon=True).start()

        def on_progress(progress: Progress) -> None:
            answer({"progress": asdict(progress)})

        listener = CallbackListener(on_progress)
        project.listener = together(NoteListener(lambda text: answer({"note": redact(text)})), listener)
        result = project.carry_out(plan)
        listener.close()
        answer({"ended": _result(result)})


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
        "failures": [_failure(each) for each in result.failures[:_MOST_FAILURES]],
        "exit_code": int(result.exit_code),
    }


def _failure(failure: FileFailure | BlobsyncError) -> dict[str, Any]:
    path = redact_tree(failure.path)
    return {"message": redact(failure.message), "hint": redact(failure.hint or ""), "path": path}


def main() -> NoReturn:
    """Carry out one transfer."""
    # The server may have been started by nohup or a shell's `&`, which ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out, sys.stdout = sys.stdout, sys.stderr
    writing = threading.Lock()

    def answer(message: Mapping[str, Any]) -> None:
        # The server may be gone; the transfer then stops, and cleans up first.
        with writing, suppress(OSError):
            out.write(json.dumps(message) + "\n")
            out.flush()

    code = ExitCode.DONE
    try:
        order = parse_object(sys.stdin.readline())
        carry_order(order, sys.stdin.readline, answer)
    except TransferCancelledError as stop:
        answer(
            {
                "failed": {"message": redact(stop.message), "hint": redact(stop.hint or ""), "path": None},
                "stopped": True,
            }
        )
    except KeyboardInterrupt:
        said = "stopped before anything was changed"
        answer({"failed": {"message": said, "hint": "", "path": None}, "stopped": True})
    except BlobsyncError as error:
        answer({"failed": _failure(error), "stopped": False})
    except Exception as error:  # noqa: BLE001 - the page shows it
        said = f"a bug in blobsync: {type(error).__name__}: {redact(str(error))}"
        answer({"failed": {"message": said, "hint": "please report it", "path": None}, "stopped": False})
        code = ExitCode.FAILED
    # Threads that still wait for the network must not keep the process.
    os._exit(code)


def _stop_on_request() -> None:
    sys.stdin.readline()
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


if __name__ == "__main__":
    main()
