"""``keep``: uploads folders while programs write them; ``checkpoints`` and ``checkpoint``: which sets of files are
complete, and saying that one is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import ConfigNotFoundError, FailureCode, LocalFileError, ProcessError, UsageError
from blobsync.base.formatting import count_text, duration_text, size_text, zulu_text
from blobsync.cli.commands import NO_CLUSTER, Commands, PathsArgument, argument, option
from blobsync.cli.output import Result, cells, columns_of, fields_of, wrapped
from blobsync.cli.session import Session, with_consent
from blobsync.cli.tables import table

if TYPE_CHECKING:
    from blobsync.base.errors import FileFailure
    from blobsync.project.api import Project
    from blobsync.project.checkpoints import Checkpoint
    from blobsync.project.keep import KeptRound
    from blobsync.project.keeper_records import KeeperState


app = Commands()
# A word that is no subcommand is a folder: ``keep output`` is ``keep start output``.
group = app.group(
    "keep",
    "Upload folders while programs write them: keep PATH. Or see who does, and stop it: ls, stop.",
    else_word="start",
)


# How long a detached keeper may take to begin, and between two looks (seconds).
_BEGIN_SECONDS, _POLL_SECONDS = 60.0, 0.1


@group.command("start")
def keep_start(
    session: Session,
    paths: PathsArgument,
    settle: Annotated[
        str, option("--settle", metavar="TIME", help="Upload what has not changed for so long: 5s, 2m.")
    ] = "5s",
    until_idle: Annotated[bool, option("--until-idle", help="End when nothing has changed for that time.")] = False,
    detach: Annotated[bool, option("--detach", help="Go on in the background; 'keep stop' ends it.")] = False,
) -> Result:
    """Upload folders while programs write them, until Ctrl-C: each file once it is still.

    'keep PATH' is short for 'keep start PATH'. It deletes nothing and leaves conflicts alone, as u does, and goes on
    by itself after an outage, a new login or a sleep. With --json each round that did something is one line of JSON;
    the last document is that of the whole. Exits with 130 after Ctrl-C, with --until-idle with 0, or 3 if files failed.

    \b
      blobsync keep output/run7                 the same as keep start output/run7
      blobsync keep output data --settle 30s    two folders
      blobsync keep output --until-idle         the rest, and then end
      blobsync keep output --detach             ends by keep stop output
    """
    seconds = _seconds(settle)
    if detach and until_idle:
        raise UsageError("--detach and --until-idle cannot be combined", hint="use only one of them")
    project = session.project()
    return (
        _detached(session, project, paths, seconds)
        if detach
        else _kept(session, project, paths, seconds, until_idle=until_idle)
    )


def _seconds(text: str) -> float:
    """A time such as 5s, 2m or 0.5. Raises ``UsageError``."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m") else (text, "s")
    try:
        return float(number) * {"s": 1.0, "m": 60.0}[unit]
    except ValueError:
        raise UsageError(f"--settle {text}: not a time", hint="for example 5s, or 2m") from None


def _kept(session: Session, project: Project, paths: Sequence[str], settle: float, *, until_idle: bool) -> Result:
    kept = with_consent(
        session,
        project,
        lambda: session.held.enter_context(project.keeping(paths, settle=settle, until_idle=until_idle)),
    )
    named = " ".join(kept.paths)
    until = f"until nothing has changed for {settle:g} s" if until_idle else "from now on"
    session.note(f"{named}: kept uploaded {until}; Ctrl-C ends it")
    result = Result({}, live=True)

    def rounds() -> Iterator[KeptRound]:
        said: dict[str, str] = {}
        for made in kept.rounds():
            if made.uploaded or made.fresh or said.get(made.path, "") != made.problem:
                yield made
            said[made.path] = made.problem
        done = kept.result
        if until_idle and done.ok:
            session.note(f"{named}: all is uploaded and verified")
        known = fields_of(done, "rounds", "uploaded", "bytes", "waiting", "idle", "problems")
        result.data = {**known, "seconds": round(done.seconds, 3)}
        result.failures, result.exit_code = done.failures, done.exit_code

    if session.json:
        result.steps = (_round_data(made) for made in rounds())
    elif session.quiet:
        result.lines = (line for made in rounds() for line in _failed(made.fresh))
    else:
        result.lines = round_lines(rounds())
    return result


def round_lines(rounds: Iterable[KeptRound]) -> Iterator[str]:
    """A line for each round, and one for each file that newly failed."""
    for made in rounds:
        at = time.strftime("%H:%M:%S", time.localtime(made.at))
        words = []
        if made.uploaded:
            took = f" in {duration_text(made.seconds)}" if made.seconds >= 1 else ""
            words.append(f"{count_text(made.uploaded, 'file')} ({size_text(made.bytes)}) uploaded{took}")
        if made.problem:
            words.append(f"waiting: {made.problem}")
        if made.fresh:
            words.append(f"{count_text(len(made.fresh), 'file')} left out")
        if made.waiting:
            words.append(f"{count_text(made.waiting, 'file')} waiting")
        yield f"{at} {made.path}: {', '.join(words) or 'it goes on'}"
        yield from _failed(made.fresh)


def _failed(failures: Sequence[FileFailure]) -> Iterator[str]:
    for failure in failures:
        word = "conflict" if failure.code is FailureCode.CONFLICT else "FAIL"
        said = failure.message.removeprefix(f"{failure.path}: ")
        yield f"  {word} {failure.path}: {said}{f'; {failure.hint}' if failure.hint else ''}"


def _round_data(made: KeptRound) -> dict[str, Any]:
    return {
        **fields_of(made, "path", "uploaded", "bytes", "waiting"),
        "round": made.number,
        "at": zulu_text(made.at),
        "seconds": round(made.seconds, 3),
        "failing": len(made.failures),
        "failures": [failure._asdict() for failure in made.fresh],
        "problem": made.problem or None,
        "problem_since": zulu_text(made.since) if made.problem else None,
    }


def _detached(session: Session, project: Project, paths: Sequence[str], settle: float) -> Result:
    """Start the same command in the background, and wait until it keeps the folders or has failed."""
    from blobsync.base.process import ProcessRunner, python_module
    from blobsync.project.keeper_records import new_log

    with_consent(session, project, lambda: project.demand_keepable(paths))
    log = new_log(project.state)
    # What -p holds may be a secret, and everybody sees the words of a process.
    words = [*(["-c", session.cluster] if session.cluster else []), *(["-p", "-"] if session.param else [])]
    words += ["-n", str(session.num_gpu)] if session.num_gpu is not None else []
    argv = (*python_module("blobsync"), *words, "keep", "start", "-q", "--settle", f"{settle:g}", "--", *paths)
    pid = ProcessRunner().spawn_detached(argv, log=log, env=session.environ, input=session.param)
    until = time.monotonic() + _BEGIN_SECONDS
    while time.monotonic() < until:
        state = next((one for one in project.keepers().values() if one.pid == pid and one.is_here), None)
        if state is not None:
            line = f"{state.id}: {' '.join(state.paths)} kept by process {pid}; 'blobsync keep stop {state.id}' ends it"
            return Result({**keeper_data(state), "log": str(log)}, [line])
        if _has_ended(pid):
            break
        time.sleep(_POLL_SECONDS)
    said = log.read_text(encoding="utf-8", errors="replace").strip()
    raise ProcessError(f"it did not start: {said or 'it said nothing'}", hint=f"see {log}")


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:
        return True


@group.command("ls", takes=NO_CLUSTER)
def keep_ls(session: Session) -> Result:
    """List the folders of this project that are kept uploaded, by whom, and how far they are.

    \b
      blobsync keep ls
    """
    states = session.project().keepers().values()
    lines = [keeper_line(state) for state in states] or ["no folder is kept; 'blobsync keep PATH' does it"]
    return Result({"keepers": [keeper_data(state) for state in states]}, lines, wraps=True)


@group.command("stop", takes=NO_CLUSTER)
def keep_stop(
    session: Session,
    chosen: Annotated[
        list[str] | None, argument(metavar="PATH...", help="Folders, or ids of 'keep ls'; without one: all of them.")
    ] = None,
) -> Result:
    """Stop keepers of this project, cleanly: what they have not uploaded yet, the next one does.

    \b
      blobsync keep stop output/run7
      blobsync keep stop 3f2a
      blobsync keep stop
    """
    project = session.project()
    stopped: dict[str, KeeperState] = {}
    for each in chosen or [state.id for state in project.keepers().values()]:
        if each not in stopped:
            stopped |= {state.id: state for state in project.stop_keeper(each)}
    lines = [f"{state.id}: {' '.join(state.paths)}: stopped" for state in stopped.values()]
    data = {"stopped": [{"id": state.id, "paths": list(state.paths)} for state in stopped.values()]}
    return Result(data, lines or ["no folder was kept"])


def keeper_data(state: KeeperState) -> dict[str, Any]:
    """A keeper as JSON."""
    return {
        **{name: value for name, value in asdict(state).items() if name not in ("born", "roots")},
        "began": zulu_text(state.began),
        "told": zulu_text(state.told),
        "last_round": zulu_text(state.last_round) if state.last_round else None,
        "problem": state.problem or None,
        "problem_since": zulu_text(state.problem_since) if state.problem else None,
        "polling": state.polling or None,
    }


def keeper_line(state: KeeperState) -> str:
    """A keeper in one line."""
    return f"{state.id}: {' '.join(state.paths)} kept by {state.who}: {state.standing}"


checkpoint_group = app.group("checkpoint", "Say that a checkpoint is complete.")


@app.command("checkpoints", looks=True)
def checkpoints(
    session: Session,
    path: Annotated[str | None, argument(metavar="[PATH]", help="A folder, or one checkpoint. Default: all.")] = None,
    job: Annotated[str | None, option("--job", metavar="ID", help="Only those that this job can go on from.")] = None,
) -> Result:
    """List checkpoints, here and in the container, and which one a restart would take.

    They are what 'checkpoints: PATTERN' in a folder entry of the cluster file names. In the container one is complete
    if it has a mark, and its files are as the mark says; 'half' ones are never restored. A mark without a seal of yours
    counts only for who names its job and its step.

    \b
      blobsync checkpoints
      blobsync checkpoints output/run-7
      blobsync checkpoints --job 3f2a
    """
    found = session.project().checkpoints(path, job=job)
    data = [asdict(each) | {"time": None if each.time is None else zulu_text(each.time)} for each in found]
    return Result({"checkpoints": data}, checkpoint_lines(found))


def checkpoint_lines(found: Sequence[Checkpoint], columns: int | None = None) -> Iterator[str]:
    """A row for each; on a narrow terminal (``columns``) what is said of it stands in a line of its own."""
    columns = columns_of(sys.stdout) if columns is None else columns
    rows = [("CHECKPOINT", "STEP", "WRITTEN", "FILES", "SIZE", "HERE", "THERE")]
    for one in found:
        step = "" if one.step is None else str(one.step)
        at = "" if one.time is None else zulu_text(one.time)
        rows.append((one.path, step, at, f"{one.files:,}", size_text(one.size), one.here, one.there))
    said = ["", *("a restart takes it" if one.is_next else one.missing for one in found)]
    shown = list(table(rows, columns))
    widest = max(map(cells, shown))
    for row, words in zip(shown, said, strict=True):
        if columns and widest + 2 + cells(words) > columns:
            yield row
            yield from wrapped(f"    {words}", columns).split("\n") if words else ()
        else:
            yield f"{row}{' ' * (widest + 2 - cells(row))}{words}".rstrip()


@checkpoint_group.command("done")
def done(
    session: Session,
    path: Annotated[str, argument(metavar="PATH", help="The checkpoint: a folder or a file.")],
    ranks: Annotated[int, option("--ranks", min=1, metavar="N", help="How many processes must say so.")] = 1,
) -> Result:
    """Say that all files of a checkpoint are written: it is uploaded as one, and marked.

    For programs that no rule knows; 'checkpoints: PATTERN' in the cluster file names it. In Python it is
    blobsync.mark_complete(PATH).

    \b
      blobsync checkpoint done output/checkpoint-1000
    """
    from blobsync.local.mark_complete import VARIABLE, mark_complete

    try:
        os.stat(path)
        # In a job, the keeper on the node has the rule of the job's own cluster.
        if not session.environ.get(VARIABLE):
            _demand_set(session, path)
        mark_complete(path, ranks)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: there is no such file or folder", path=path) from error
    except OSError as error:
        raise LocalFileError(f"{path}: {error.strerror}", path=path) from error
    said = "" if ranks == 1 else f", by one of {count_text(ranks, 'rank')}"
    return Result({"path": path, "ranks": ranks}, [f"{path}: said to be complete{said}"])


def _demand_set(session: Session, path: str) -> None:
    """Refuse what is no checkpoint of the project's cluster file; where there is none, nothing is known."""
    from blobsync.config.loader import find_cluster_file, inside_project, load_cluster
    from blobsync.config.mapping import resolve
    from blobsync.config.project_root import current_folder, find_project
    from blobsync.project.checkpoints import demand_set

    here = current_folder(session.environ)
    try:
        root = find_project(here, session.environ)
        find_cluster_file(root, session.cluster, session.environ)
    except ConfigNotFoundError:
        return
    cluster = load_cluster(root, session.cluster, overrides=session.overrides(), environ=session.environ)
    demand_set(cluster, resolve(inside_project(root, path), cwd=here, root=root, cluster=cluster))
