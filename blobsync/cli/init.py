"""``init`` and ``initc``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import UsageError
from blobsync.base.formatting import count_text, size_text, took_text
from blobsync.cli.commands import Commands, option
from blobsync.cli.output import Result, fields_of
from blobsync.cli.reports import result_data, result_lines
from blobsync.cli.session import Session, with_consent

if TYPE_CHECKING:
    from blobsync.code.packed_files import Decision
    from blobsync.code.project_code import Code, CodeResult, CodeState
    from blobsync.plan.transfer_result import TransferResult
    from blobsync.project.api import Project

# Maximum number of files that --list explains, and of uncommitted files that are named.
_EXPLAINED = 10
_NAMED = 5

DryRun = Annotated[bool, option("--dry-run", help="Show what would be uploaded, and upload nothing.")]
AllowSecrets = Annotated[bool, option("--allow-secrets", help="Pack files that look like credentials, too.")]
MaxFileSize = Annotated[
    str | None, option("--max-file-size", metavar="SIZE", help="Leave out files larger than this: 200MB, 1GiB.")
]
ListFiles = Annotated[bool, option("--list", help="List the files of the archive; show why the largest are in it.")]
Folder = Annotated[bool, option("--folder", help="Upload the files one by one to a blob folder, without a zip.")]
Why = Annotated[
    str | None,
    option("--why", metavar="PATH", help="Show which pattern includes or excludes PATH."),
]


app = Commands()


@app.command("init")
def init(
    session: Session,
    dry_run: DryRun = False,
    list_files: ListFiles = False,
    why: Why = None,
    folder: Folder = False,
    allow_secrets: AllowSecrets = False,
    max_file_size: MaxFileSize = None,
) -> Result:
    """Pack the project's code and upload it to code_path, for jobs to run.

    Packs every file that .gitignore, .amlignore and .blobsyncignore do not exclude, committed or not. Unchanged code is
    not uploaded again, so init and initi are the same.

    \b
      blobsync init                    after every edit, before submit
      blobsync init --list             the files of the archive and their sizes
      blobsync init --why src/a.bin    which pattern, in which file and line
    """
    if sum((list_files, why is not None, folder)) > 1:
        raise UsageError("--list, --why and --folder cannot be combined")
    code = _code(session.project(), allow_secrets=allow_secrets, max_file_size=max_file_size)
    if why is not None:
        return _why(code.why(why))
    if list_files:
        return _listing(code)
    if folder or code.goes_to_a_folder:
        return _folder(session, *code.sync_folder(dry_run=dry_run))
    return _published(session, code.publish(dry_run=dry_run))


@app.command("initc")
def initc(
    session: Session,
    dry_run: DryRun = False,
    allow_secrets: AllowSecrets = False,
    max_file_size: MaxFileSize = None,
) -> Result:
    """Compile in the cluster's docker image, then run init.

    Runs compile.aml.sh of the project with the cluster's compile_args, in a copy of the code; its output
    is packed as well. Options of docker.args that reach beyond the project need your word: 'blobsync config
    trust-docker'.

    \b
      blobsync initc
    """
    project = session.project()
    code = _code(project, allow_secrets=allow_secrets, max_file_size=max_file_size)
    result = with_consent(session, project, lambda: code.publish_compiled(dry_run=dry_run))
    return _published(session, result)


def _code(project: Project, *, allow_secrets: bool, max_file_size: str | None) -> Code:
    from blobsync.code.project_code import Code, CodeOptions
    from blobsync.config.typed_values import parse_size

    limit = parse_size(max_file_size) if max_file_size else None
    if max_file_size and limit is None:
        raise UsageError(f"--max-file-size {max_file_size}: not a size", hint="for example 200MB or 1GiB")
    return Code(project, CodeOptions(max_file_size=limit, allow_secrets=allow_secrets))


def _published(session: Session, result: CodeResult) -> Result:
    for note in result.notes:
        session.note(note)
    seconds = session.seconds
    return Result(_data(result, seconds), _lines(result, seconds), wraps=True)


def _data(result: CodeResult, seconds: float) -> dict[str, Any]:
    known = fields_of(result, "status", "archive_bytes", "removed", "notes")
    places = {"code_path": str(result.remote), "kept": str(result.kept)}
    return {**known, **_state_data(result.state), **places, "seconds": round(seconds, 3)}


_DECISION = ("path", "included", "reason", "pattern", "file", "line", "size")


def _state_data(state: CodeState) -> dict[str, Any]:
    git = state.git
    return {
        "code_digest": state.snapshot.digest,
        "files": len(state.snapshot.files),
        "bytes": state.snapshot.size,
        "git": git and fields_of(git, "commit", "dirty", "uncommitted"),
        "left_out": [fields_of(one, *_DECISION) for one in state.snapshot.left_out],
    }


def _lines(result: CodeResult, seconds: float) -> Iterator[str]:
    files = f"{count_text(len(result.state.snapshot.files), 'file')}, {size_text(result.state.snapshot.size)}"
    name = result.digest[:12]
    if result.status == "unchanged":
        yield f"unchanged: {result.remote} already has this code ({files}, {name})"
    elif result.status == "would_publish":
        yield f"would pack {files} and upload it to {result.remote} ({name})"
    else:
        packed = f" as {size_text(result.archive_bytes)}" if result.archive_bytes is not None else ""
        yield f"packed {files}{packed} in {took_text(seconds)}; {result.remote} is now {name}"
    yield from _git_lines(result.state)


def _git_lines(state: CodeState) -> Iterator[str]:
    git = state.git
    if git is None or not git.dirty:
        return
    commit = git.commit[:10] if git.commit else "the first commit"
    named = ", ".join(git.uncommitted[:_NAMED])
    more = f" and {len(git.uncommitted) - _NAMED} more" if len(git.uncommitted) > _NAMED else ""
    yield f"with {count_text(len(git.uncommitted), 'file')} that differ from {commit}: {named}{more}"


def _listing(code: Code) -> Result:
    state = code.current_state()
    reasons = {file.path: code.reason_for(file) for file in state.snapshot.biggest(_EXPLAINED)}
    files = [
        {"path": file.path, "size": file.size, "mode": file.file.mode, "reason": reasons.get(file.path)}
        for file in state.snapshot.files
    ]
    return Result(_state_data(state) | {"list": files}, _list_lines(state, reasons), wraps=True)


def _list_lines(state: CodeState, reasons: dict[str, str]) -> Iterator[str]:
    for file in state.snapshot.files:
        why = f"  ({reasons[file.path]})" if file.path in reasons else ""
        yield f"{size_text(file.size):>9}  {file.path}{why}"
    yield from state.notes
    yield f"{count_text(len(state.snapshot.files), 'file')}, {size_text(state.snapshot.size)}"
    yield from _git_lines(state)


def _why(decision: Decision) -> Result:
    where = f"{decision.file}:{decision.line}" if decision.line else decision.file
    text = f"{decision.path} is {'in' if decision.included else 'left out'}: {decision.reason}"
    if decision.pattern is not None:
        text += f": {decision.pattern} ({where})"
    return Result(fields_of(decision, *_DECISION), [text], wraps=True)


def _folder(session: Session, state: CodeState, result: TransferResult | None) -> Result:
    for note in state.notes:
        session.note(note)
    if result is None:
        files = count_text(len(state.snapshot.files), "file")
        return Result(_state_data(state), [f"would bring the blob folder up to date with {files}"])
    seconds = session.seconds
    data = _state_data(state) | result_data(result, seconds)
    lines = [*result_lines(result, seconds), *_git_lines(state)]
    return Result(data, lines, result.failures, result.exit_code, wraps=True)
