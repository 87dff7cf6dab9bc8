"""``config new``: a short dialogue on a terminal, options in a script, examples to fill in without either."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blobsync.base.errors import CredentialError, UsageError
from blobsync.cli.confirm import confirm
from blobsync.cli.login import check_data, check_lines, given_login, try_login
from blobsync.cli.output import Result
from blobsync.cli.questions import ask_text, ask_until, can_ask
from blobsync.cli.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blobsync.base.check_results import CheckResult
    from blobsync.config.first_files import StorageAnswers
    from blobsync.config.logins import StoredLogin
    from blobsync.config.model import StorageAccount

_KINDS = ("sas", "key", "identity")


def config_new(
    session: Session,
    emulator: Annotated[bool, typer.Option("--emulator", help="Configure for 'blobsync emulator start'.")] = False,
    account: Annotated[
        str | None, typer.Option(metavar="NAME|URL", help="The storage account, by its name or blob endpoint.")
    ] = None,
    container: Annotated[str | None, typer.Option(metavar="NAME", help="The container.")] = None,
    auth: Annotated[str, typer.Option(metavar="sas|key|identity", help="How to log in.")] = "identity",
    folders: Annotated[str, typer.Option(metavar="NAMES", help="Folders to map, with commas.")] = "data,output",
    base: Annotated[
        str | None, typer.Option(metavar="PATH", help="Their place in the container. Default: this folder's name.")
    ] = None,
    stdin: Annotated[bool, typer.Option("--stdin", help="Read the SAS or key from standard input.")] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not try it before writing.")] = False,
) -> Result:
    """Write the first configuration files of a project into the current folder; never changes one that is there.

    On a terminal it asks for the account, the container, how you log in, and which folders to map; it tries that,
    writes the files and shows them. With --account and --container it asks nothing. They hold no secret: a SAS or
    key is stored where 'blobsync login' stores it, so the files belong in git, and a colleague needs only
    'blobsync login'. With neither a terminal nor options it writes examples with placeholders.

    \b
      blobsync config new               asks
      blobsync -c eu config new         the same for a second cluster, eu
      blobsync config new --emulator    for 'blobsync emulator start'
      blobsync config new --account mystorage --container data --auth sas --stdin < sas.txt
    """
    if emulator or not (account or container or can_ask(session)):
        return _examples(session, emulator=emulator)
    answers = _answers(session, account, container, auth, folders, base)
    place = _demand_room(session, answers)
    if answers.auth != "identity" and not stdin and not can_ask(session):
        return _written(session, answers, place, None, ())
    given = None if answers.auth == "identity" else given_login(session, place)
    checks = () if no_check else _tried(session, place, given, answers.base)
    return _written(session, answers, place, given, checks)


def _examples(session: Session, *, emulator: bool) -> Result:
    from blobsync.config.scaffold import new_project

    own, step = None, "fill in what is in <angle brackets>, then: blobsync config check"
    if emulator:
        from blobsync.emulator import Emulator

        server = Emulator(environ=session.environ, note=session.listener.note)
        own = server.own_account()
        step = "put files into data, then: blobsync u data" if server.status() else "blobsync emulator start"
    made = new_project(Path.cwd(), emulator=own, environ=session.environ)
    lines = [f"wrote {name}" for name in made.written] + [f"kept {name} as it is" for name in made.kept]
    return Result({"written": list(made.written), "kept": list(made.kept)}, [*lines, f"next: {step}"])


def _answers(
    session: Session, account: str | None, container: str | None, auth: str, folders: str, base: str | None
) -> StorageAnswers:
    from blobsync.config.first_files import StorageAnswers, folder_names, split_account
    from blobsync.config.model import DEFAULT_CLUSTER

    cluster = session.cluster or DEFAULT_CLUSTER
    here = Path.cwd().name
    if account is None and container is None:
        return _dialogue(session, cluster, here)
    if not account:
        raise UsageError("--container is given without --account", hint="--account NAME --container NAME")
    name, endpoint, inside = split_account(account)
    if not (container or inside):
        raise UsageError("--account is given without --container", hint="--account NAME --container NAME")
    return StorageAnswers(
        name,
        container or inside or "",
        _kind(auth),
        endpoint,
        folder_names(folders),
        here if base is None else base,
        cluster,
    )


def _kind(word: str) -> str:
    if word not in _KINDS:
        raise UsageError(f"'{word}' is not one of {', '.join(_KINDS)}")
    return word


def _dialogue(session: Session, cluster: str, here: str) -> StorageAnswers:
    from blobsync.config.first_files import StorageAnswers, folder_names, split_account

    # Before the first question: files that are there would make all answers useless.
    _demand_new(cluster)
    name, endpoint, inside = ask_until(
        session, lambda: ask_text(session, "storage account (its name, or the URL of its blob endpoint)"), split_account
    )
    container = ask_text(session, "container", inside or "")
    _demand_valid(StorageAnswers(name, container, "identity", endpoint, cluster=cluster), session)
    auth = ask_until(session, lambda: ask_text(session, f"log in with {', '.join(_KINDS)}", "sas"), _kind)
    folders = ask_until(
        session, lambda: ask_text(session, "folders of this project to map", "data, output"), folder_names
    )
    base = ask_text(session, "their place in the container", here)
    return StorageAnswers(name, container, auth, endpoint, folders, base, cluster)


def _demand_new(cluster: str) -> None:
    from blobsync.config.first_files import account_file, cluster_file
    from blobsync.config.scaffold import demand_new

    hint = "it is kept as it is; blobsync -c NAME config new makes another cluster"
    demand_new(Path.cwd(), (cluster_file(cluster), account_file(cluster)), hint)


def _demand_valid(answers: StorageAnswers, session: Session) -> StorageAccount:
    """The account as the file would say it, by the rules of account files. Raises ``ConfigError``."""
    from blobsync.config.accounts import AccountFile, first_of
    from blobsync.config.first_files import account_file, account_values
    from blobsync.config.yaml_lines import Document

    name = account_file(answers.cluster)
    file = AccountFile(Path(name), name, session.environ, Document(name, account_values(answers), {}))
    if file.without_login is None:
        raise first_of(file.problems)
    return file.without_login


def _demand_room(session: Session, answers: StorageAnswers) -> StorageAccount:
    _demand_new(answers.cluster)
    return _demand_valid(answers, session)


def _tried(session: Session, account: StorageAccount, given: StoredLogin | None, base: str) -> tuple[CheckResult, ...]:
    try:
        return try_login(session, account, given, base.strip("/"))
    except CredentialError as error:
        if not can_ask(session):
            raise
        session.listener.note(error.message + (f" ({error.hint})" if error.hint else ""))
        confirm(session, "that does not work yet: write the files anyway?")
        return ()


def _written(
    session: Session,
    answers: StorageAnswers,
    account: StorageAccount,
    given: StoredLogin | None,
    checks: Sequence[CheckResult],
) -> Result:
    from blobsync.config.first_files import first_files
    from blobsync.config.logins import logins_file, save_login
    from blobsync.config.scaffold import ignore_data, write_files

    files, root = first_files(answers), Path.cwd()
    # A link out of the project is refused here already, before anything is written.
    ignored = ignore_data(root, answers.folders, session.environ)
    write_files(root, files)
    if given is not None:
        save_login(account.container, given, session.environ)
    stored = [f"stored your login in {logins_file(session.environ)}, for you alone"] if given is not None else []
    shown = [line for each in files for line in (f"wrote {each.name}:", *(f"  {row}" for row in each.text.split("\n")))]
    first = f"blobsync {'' if answers.cluster == 'aml' else f'-c {answers.cluster} '}plan u {answers.folders[0]}"
    step = "blobsync login" if given is None and answers.auth != "identity" else first
    written = [file.name for file in files] + ([".gitignore"] if ignored else [])
    data = {
        "written": written,
        "kept": [] if ignored else [".gitignore"],
        "auth": answers.auth,
        "login_stored": given is not None,
        "checks": check_data(checks),
    }
    lines = [*shown, *(["wrote .gitignore"] if ignored else []), *stored, *check_lines(checks)]
    return Result(data, [*lines, "these files hold no secret: commit them", f"next: {step}"])
