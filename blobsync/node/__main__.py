"""Entry point of ``python -m blobsync.node`` and of the node archive."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType

from blobsync.base.errors import BlobsyncError
from blobsync.base.exit_codes import SETUP_FAILED_EXIT, shell_code
from blobsync.base.redaction import Secret, redact
from blobsync.jobspec.log_frames import LAST_LINE_VARIABLE
from blobsync.jobspec.spec import JobSpec, Secrets
from blobsync.node import commands
from blobsync.node.job import NodeArguments, NodeJob, demand_startable, parse_arguments, read_text
from blobsync.node.job_stores import JobStores
from blobsync.node.pod_log import Echo
from blobsync.node.ranks import NotReadyError, node_rank_from_launcher, ranks_from_launcher
from blobsync.node.setup import make_ready
from blobsync.node.stopping import WARNINGS, HeldSignals


def main(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run one verb; returns the exit code. ``environ``: default ``os.environ``."""
    arguments = parse_arguments(argv)
    held = HeldSignals()
    held.catch(WARNINGS)
    # The bootstrap holds a scheduler's warning back until a program can receive it.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WARNINGS)
    # There are no processes yet to pass it on to; cleaning up happens on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(shell_code(-signal.SIGTERM)))
    redact_tracebacks()
    try:
        return _carry_out(arguments, held, os.environ if environ is None else environ)
    except BlobsyncError as error:
        hint = f"; {error.hint}" if error.hint else ""
        sys.stderr.write(redact(f"blobsync: this node could not be made ready: {error.message}{hint}") + "\n")
        return SETUP_FAILED_EXIT
    except OSError as error:
        # A disk that is full before the command starts, for one.
        where = f"{error.filename}: " if error.filename else ""
        sys.stderr.write(
            redact(f"blobsync: this node could not be made ready: {where}{error.strerror or error}") + "\n"
        )
        return SETUP_FAILED_EXIT


def _carry_out(arguments: NodeArguments, held: HeldSignals, environ: Mapping[str, str]) -> int:
    try:
        spec = JobSpec.from_json(read_text(arguments.job))
        text = read_text(arguments.secrets) if arguments.secrets else ""
        # At the end of a job its secrets may be removed already.
        secrets = Secrets.from_json(text).asked_for(spec) if text else Secrets()
    except (ValueError, KeyError, TypeError) as error:
        raise NotReadyError(f"the job's files cannot be read: {error}") from error
    demand_startable(spec, secrets)
    # The redactor knows them from here on.
    secret_env = {name: Secret(value) for name, value in secrets.env.items()}
    places = JobStores(secrets.sas, environ, arguments.secrets)
    job = NodeJob(spec, secret_env, arguments, environ, _node_rank(arguments, spec, environ))
    if arguments.echo:
        last = environ.get(LAST_LINE_VARIABLE, "")
        with Echo(job.run_dir, job.node_rank, job.attempt, last=last):
            return _do(arguments, job, places, held)
    return _do(arguments, job, places, held)


def _do(arguments: NodeArguments, job: NodeJob, places: JobStores, held: HeldSignals) -> int:
    if arguments.verb == "prepare":
        make_ready(job, places)
        return 0
    if arguments.verb == "exec":
        return commands.run_rank(job, places, held, log=arguments.log)
    if arguments.verb == "node":
        return commands.run_node(job, places, held)
    if arguments.verb == "finish":
        return commands.finish_node(job, places, arguments.code)
    if arguments.verb == "spread":
        if arguments.log:
            _write_log(job)
        # A quarter of what is imported, at each start of a process on a node, and jobs do without.
        from blobsync.node.spread import run_spread

        return run_spread(job, places)
    return commands.run_in_terminal(job, held)


def _write_log(job: NodeJob) -> None:
    """From here on all output goes to the log of the task."""
    log = job.rank_log(0)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def _node_rank(arguments: NodeArguments, spec: JobSpec, environ: Mapping[str, str]) -> int:
    if arguments.node_rank is not None:
        return arguments.node_rank
    if arguments.verb == "exec":
        return ranks_from_launcher(spec, environ).node_rank
    return node_rank_from_launcher(spec, environ)


def redact_tracebacks() -> None:
    """Remove secrets from tracebacks: an internal error may quote a URL."""

    def show(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        sys.stderr.write(redact("".join(traceback.format_exception(kind, error, trace))))

    def show_of_thread(args: threading.ExceptHookArgs) -> None:
        show(args.exc_type, args.exc_value, args.exc_traceback)

    sys.excepthook = show
    threading.excepthook = show_of_thread


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
