"""Entry point of ``python -m blobsync.node`` and of the node archive, and the commands there."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from blobsync.base.errors import BlobsyncError
from blobsync.base.exit_codes import OUTPUT_FAILED_EXIT, SETUP_FAILED_EXIT, shell_code
from blobsync.base.redaction import Secret, redact
from blobsync.jobspec.log_frames import LAST_LINE_VARIABLE
from blobsync.jobspec.spec import JOB_CODE, JobSpec, Secrets
from blobsync.node.elastic import Member, member_of
from blobsync.node.job import NodeArguments, NodeJob, demand_startable, parse_arguments, read_text, write_text
from blobsync.node.job_stores import JobStores
from blobsync.node.pod_log import Echo
from blobsync.node.processes import TERM_TO_KILL_SECONDS, WARNINGS, HeldSignals, run_processes, start_error_code
from blobsync.node.ranks import (
    NotReadyError,
    Ranks,
    master_address,
    node_rank_from_launcher,
    ranks_from_launcher,
    ranks_of_node,
)
from blobsync.node.setup import clean_up, make_ready, restore_again
from blobsync.node.uploader import Uploader

# How long to wait (seconds) for the last outputs of the node's other processes, and for those after a failure, when
# the launcher ends them anyway.
_OTHERS_SECONDS, _OTHERS_AFTER_FAILURE_SECONDS = 60.0, 2.0


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
        text = f"{error.message}; {error.hint}" if error.hint else error.message
    except OSError as error:
        # A disk that is full before the command starts, for one.
        text = (f"{error.filename}: " if error.filename else "") + (error.strerror or str(error))
    sys.stderr.write(redact(f"blobsync: this node could not be made ready: {text}") + "\n")
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
        return run_rank(job, places, held, log=arguments.log)
    if arguments.verb == "node":
        return run_node(job, places, held)
    if arguments.verb == "finish":
        return finish_node(job, places, arguments.code)
    if arguments.verb == "spread":
        if arguments.log:
            _write_log(job)
        # A quarter of what is imported, at each start of a process on a node, and jobs do without.
        from blobsync.node.spread import run_spread

        return run_spread(job, places)
    return run_in_terminal(job, held)


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


def run_rank(job: NodeJob, places: JobStores, held: HeldSignals, *, log: bool) -> int:
    """Run one process that a launcher has started; the node's first one also uploads outputs and logs."""
    ranks = ranks_from_launcher(job.spec, job.environ)
    make_ready(job, places)
    uploader = Uploader(job, places) if ranks.local_rank == 0 else None
    if uploader:
        uploader.start()
    done = job.beside(f"done{ranks.local_rank}")
    done.unlink(missing_ok=True)
    # From here on warnings are received; only Slurm's batch script makes the folder, and waits until it is full.
    with suppress(FileNotFoundError):
        write_text(job.run_dir / "up" / str(ranks.rank), "")
    restore = partial(restore_again, job, places)
    member = member_of(job, held, restore)
    code = _run(job, held, member, lambda one: job.rank_log(one.rank) if log else None, [ranks], restore)
    # The disk may be full by now.
    with suppress(OSError):
        write_text(done, str(code))
    if code and member is None and not job.stopped:
        # srun then stops the others, and reports the highest code of all.
        with suppress(OSError), open(job.run_dir / JOB_CODE, "x", encoding="utf-8") as file:
            file.write(str(code))
    if uploader:
        of_all = _code_of_all(job, code)
        fine = uploader.stop(of_all)
        if member:
            _leave(job, member, code if fine else code or OUTPUT_FAILED_EXIT)
        if not fine:
            return code or OUTPUT_FAILED_EXIT
        if of_all is not None and (code or job.stopped):
            # Slurm starts nothing more, not even "finish", for a cancelled job.
            clean_up(job, code)
    return code


def _run(
    job: NodeJob,
    held: HeldSignals,
    member: Member | None,
    log_of: Callable[[Ranks], Path | None],
    ranks: list[Ranks],
    restore: Callable[[], None],
) -> int:
    if member is None:
        return run_processes(job, held, log_of, ranks, restore)
    return member.run(log_of, ranks[0])


def _leave(job: NodeJob, member: Member, code: int) -> None:
    member.leave()
    if job.node_rank == 0:
        # The backend sees only that a node failed, which need not have mattered.
        with suppress(OSError):
            write_text(job.run_dir / JOB_CODE, str(code))


def _code_of_all(job: NodeJob, code: int) -> int | None:
    """Wait for the node's other processes before the last upload: the highest code; None if one of them still runs."""
    patience = _OTHERS_AFTER_FAILURE_SECONDS if code else _OTHERS_SECONDS
    until = time.monotonic() + (TERM_TO_KILL_SECONDS if job.stopped else patience)
    waiting = [job.beside(f"done{local_rank}") for local_rank in range(1, job.spec.procs_per_node)]
    while not all(path.exists() for path in waiting):
        if time.monotonic() > until:
            return None
        time.sleep(0.05)
    codes = [read_text(path) for path in waiting]
    return max([code, *(int(text) if text.isdigit() else 1 for text in codes)])


def run_node(job: NodeJob, places: JobStores, held: HeldSignals) -> int:
    """Run all processes of this node."""
    uploader, restore = Uploader(job, places), partial(restore_again, job, places)
    try:
        make_ready(job, places)
        member = member_of(job, held, restore)
    except NotReadyError:
        uploader.stop()
        clean_up(job, SETUP_FAILED_EXIT)
        raise
    uploader.start()
    if not (job.run_dir / "phase").exists():
        # Its time is when the job began to run; later nodes, and nodes that come back, leave it.
        (job.run_dir / "phase").touch()
    ranks = ranks_of_node(job.spec, job.node_rank)
    code = _run(job, held, member, lambda one: job.rank_log(one.rank), list(ranks), restore)
    job.say(f"the command ended with {code}")
    fine = uploader.stop(code)
    if member:
        member.leave()
    if not fine:
        return code or OUTPUT_FAILED_EXIT
    clean_up(job, code)
    return code


def run_in_terminal(job: NodeJob, held: HeldSignals) -> int:
    """Run the processes in this terminal; a single one replaces this process, so that a debugger has the terminal."""
    master_address(job.spec, job.environ)
    if job.own_output:
        job.own_output.mkdir(parents=True, exist_ok=True)
    job.demand_work_dir()
    ranks = ranks_of_node(job.spec, job.node_rank)
    if len(ranks) == 1:
        return _become(job, ranks[0])
    return run_processes(job, held, lambda _: None, ranks)


def _become(job: NodeJob, ranks: Ranks) -> int:
    command = job.command()
    os.chdir(job.work_dir)
    try:
        os.execvpe(command[0], command, job.user_environment(ranks))  # noqa: S606 - the user's program, as given
    except OSError as error:
        job.warn(f"cannot start {command[0]}: {error.strerror}")
        return start_error_code(error)


def finish_node(job: NodeJob, places: JobStores, code: int) -> int:
    """Make the last uploads and clean up; ``code`` is the command's exit code."""
    if not Uploader(job, places).stop(code):
        return OUTPUT_FAILED_EXIT
    clean_up(job, code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
