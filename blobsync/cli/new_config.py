"""``config new``: a dialogue on a terminal, options in a script, examples to fill in without either."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from blobsync.base.errors import ContainerNotFoundError, CredentialError, StorageError, UsageError
from blobsync.cli.confirm import ask_text, ask_until, ask_word, can_ask
from blobsync.cli.login import another_login, check_data, check_lines, given_login, try_login
from blobsync.cli.output import CommandInterruptedError, Result
from blobsync.cli.session import Session, option
from blobsync.config.accounts import AccountFile, signed_in
from blobsync.config.logins import StoredLogin, load_login, logins_file, save_login
from blobsync.config.model import DEFAULT_CLUSTER, StorageAccount
from blobsync.config.scaffold import (
    StorageAnswers,
    account_file,
    account_values,
    base_folder,
    cluster_file,
    demand_new,
    first_files,
    folder_names,
    ignore_data,
    leaves_out_accounts,
    new_project,
    split_account,
    write_files,
)
from blobsync.config.yaml_document import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blobsync.base.check_results import CheckResult

T = TypeVar("T")

# Placeholder while the container is unknown.
_ANY_CONTAINER = "container"
_KINDS = ("sas", "key", "identity")
_WITHOUT_LOGIN = (
    "run az login first; or log in with a SAS or a key (--auth sas, --auth key); --no-check does not try it"
)


def config_new(
    session: Session,
    emulator: Annotated[bool, option("--emulator", help="Configure for 'blobsync emulator start'.")] = False,
    account: Annotated[
        str | None, option(metavar="NAME|URL", help="The storage account, by its name or blob endpoint.")
    ] = None,
    container: Annotated[str | None, option(metavar="NAME", help="The container.")] = None,
    auth: Annotated[str, option(metavar="sas|key|identity", help="How to log in.")] = "identity",
    folders: Annotated[str, option(metavar="NAMES", help="Folders to map, with commas.")] = "data,output",
    base: Annotated[
        str | None, option(metavar="PATH", help="Their place in the container. Default: this folder's name.")
    ] = None,
    stdin: Annotated[bool, option("--stdin", help="Read the SAS or key from standard input.")] = False,
    create: Annotated[bool, option("--create", help="Create the container if it does not exist.")] = False,
    no_check: Annotated[bool, option("--no-check", help="Do not try it before writing.")] = False,
) -> Result:
    """Write the first configuration files of a project into the current folder; never changes one that is there.

    On a terminal it asks for the account, the container, how you log in, and which folders to map; it tries that,
    writes the files and shows them. What does not work can be changed, and it offers to create a container that does
    not exist. With --account and --container it asks nothing. The files hold no secret: a SAS or key is stored where
    'blobsync login' stores it, and used from there if you stored one before; so the files belong in git, and a
    colleague needs only 'blobsync login'. With neither a terminal nor options it writes examples with placeholders.

    \b
      blobsync config new               asks
      blobsync -c eu config new         the same for a second cluster, eu
      blobsync config new --emulator    for 'blobsync emulator start'
      blobsync config new --account mystorage --container data --auth sas --stdin < sas.txt
    """
    if emulator or not (account or container or can_ask(session)):
        return _examples(session, emulator=emulator)
    answers = _answers(session, account, container, auth, folders, base)
    return _settled(session, answers, stdin=stdin, create=create, no_check=no_check)


def _settled(session: Session, answers: StorageAnswers, *, stdin: bool, create: bool, no_check: bool) -> Result:
    """Check the answers, ask again for those that do not work, and write the files."""
    refused, another = False, None
    while True:
        _demand_new(answers.cluster)
        place = _account_of(answers, session)
        given = another or _login_for(session, place, stdin=stdin, again=refused)
        if given is None and answers.auth != "identity":
            return _written(session, answers, place, None, ())
        try:
            checks = () if no_check else _tried(session, place, given, answers.base, create=create)
        except (CredentialError, StorageError) as error:
            if stdin or not can_ask(session):
                raise
            session.note(error.message + (f" ({error.hint})" if error.hint else ""))
            refused = isinstance(error, CredentialError)
            # Whoever pasted a wrong one pastes another: what is asked first must not show it.
            another = another_login(session, place) if refused and given else None
            if another is not None:
                continue
            if _is_to_change(session):
                answers = _dialogue(session, answers)
                continue
            checks = ()
        return _written(session, answers, place, given, checks)


def _examples(session: Session, *, emulator: bool) -> Result:
    cluster = session.cluster or DEFAULT_CLUSTER
    own, step = None, "blobsync config check"
    if emulator:
        from blobsync.emulator import Emulator

        server = Emulator(environ=session.environ, note=session.note)
        own = server.own_account()
        through = "" if cluster == DEFAULT_CLUSTER else f"-c {cluster} "
        step = f"put files into data, then: blobsync {through}u data" if server.status() else "blobsync emulator start"
    made = new_project(Path.cwd(), emulator=own, cluster=cluster, environ=session.environ)
    if made.written and not emulator:
        step = f"fill in what is in <angle brackets>, then: {step}"
    lines = [f"wrote {name}" for name in made.written] + [f"kept {name} as it is" for name in made.kept]
    return Result({"written": list(made.written), "kept": list(made.kept)}, [*lines, f"next: {step}"], wraps=True)


def _answers(
    session: Session, account: str | None, container: str | None, auth: str, folders: str, base: str | None
) -> StorageAnswers:
    cluster = session.cluster or DEFAULT_CLUSTER
    here = Path.cwd().name
    if account is None and container is None:
        # Check before the first question: existing files would make all answers useless.
        _demand_new(cluster)
        return _dialogue(session, StorageAnswers("", "", "", folders=folder_names(folders), base=here, cluster=cluster))
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
        base_folder(here if base is None else base),
        cluster,
    )


def _kind(word: str) -> str:
    if word not in _KINDS:
        raise UsageError(f"'{word}' is not one of {', '.join(_KINDS)}")
    return word


def _dialogue(session: Session, before: StorageAnswers) -> StorageAnswers:
    """Ask for everything; the answers in ``before`` are the defaults."""

    def account(text: str) -> tuple[StorageAnswers, str | None]:
        name, endpoint, inside = split_account(text)
        found = replace(before, account=name, endpoint=endpoint, container=_ANY_CONTAINER)
        _account_of(found, session)
        return found, inside

    def container(text: str) -> StorageAnswers:
        found = replace(answers, container=text)
        _account_of(found, session)
        return found

    def ask(question: str, default: str, read: Callable[[str], T]) -> T:
        return ask_until(session, lambda: ask_text(session, question, default), read)

    known = before.endpoint or before.account
    answers, inside = ask("storage account (its name, or the URL of its blob endpoint)", known, account)
    answers = ask("container", inside or before.container, container)
    stored = load_login(_account_of(answers, session).container, session.environ)
    auth = ask(f"log in with {', '.join(_KINDS)}", stored.kind if stored else before.auth or "sas", _kind)
    folders = ask("folders of this project to map", ", ".join(before.folders), folder_names)
    base = ask("their place in the container", before.base or "/", base_folder)
    return replace(answers, auth=auth, folders=folders, base=base)


def _demand_new(cluster: str) -> None:
    hint = "it is kept as it is; blobsync -c NAME config new makes another cluster"
    demand_new(Path.cwd(), (cluster_file(cluster), account_file(cluster)), hint)


def _account_of(answers: StorageAnswers, session: Session) -> StorageAccount:
    """The account, by the rules of account files. Raises ``UsageError``, since no file exists yet."""
    name = account_file(answers.cluster)
    values = account_values(replace(answers, auth=answers.auth or "identity"))
    file = AccountFile(Path(name), name, session.environ, Document(name, values, {}))
    if file.without_login is None:
        problem = file.problems[0]
        key = "" if problem.detail.startswith("'") else (problem.key or "").replace("_", " ")
        raise UsageError(f"{key} {problem.detail}".strip(), hint=problem.hint)
    return file.without_login


def _login_for(session: Session, account: StorageAccount, *, stdin: bool, again: bool) -> StoredLogin | None:
    """The stored login, or the one that the user gives (``again``: only that); None for an identity, or if the user
    cannot be asked."""
    if account.auth == "identity":
        return None
    stored = None if stdin or again else load_login(account.container, session.environ)
    if stored is not None and stored.kind == account.auth:
        what = "SAS" if stored.kind == "sas" else "key"
        session.note(f"your stored {what} for {account.container} is used")
        return stored
    return given_login(session, account) if stdin or can_ask(session) else None


def _tried(
    session: Session, account: StorageAccount, given: StoredLogin | None, base: str, *, create: bool
) -> tuple[CheckResult, ...]:
    """What the login allows in the container. Raises ``CredentialError`` or ``StorageError``."""
    from blobsync.store.connect import connect

    try:
        return try_login(session, account, given, base)
    except CredentialError as error:
        # The file that the message names is not written yet.
        said = error.message.removeprefix(f"{account.file}: ")
        raise type(error)(said, hint="check what you gave" if given else _WITHOUT_LOGIN) from error
    except ContainerNotFoundError as error:
        if not (create or _agrees_to_create(session, account)):
            error.hint = f"create it, for example with --create, or check its name: {account.container}"
            raise
    with connect(signed_in(account, given) if given else account, environ=session.environ) as store:
        store.create_container()
    session.note(f"created the container {account.container}")
    return try_login(session, account, given, base)


def _agrees_to_create(session: Session, account: StorageAccount) -> bool:
    question = f"the container {account.container} does not exist: create it? (yes, no)"
    return can_ask(session) and ask_word(session, question, "no", "yes", "n", "y") in ("yes", "y")


def _is_to_change(session: Session) -> bool:
    """Ask what to do about a login that does not work: True for other answers, False to write the files anyway."""
    question = "that does not work yet: change the answers, write the files anyway, or stop?"
    word = ask_word(session, question, "change", "write", "stop")
    if word == "stop":
        raise CommandInterruptedError("stopped: nothing was written")
    return word == "change"


def _written(
    session: Session,
    answers: StorageAnswers,
    account: StorageAccount,
    given: StoredLogin | None,
    checks: Sequence[CheckResult],
) -> Result:
    files, root = first_files(answers), Path.cwd()
    # Refuse a link out of the project before anything is written.
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
    # A line in .gitignore from files that held one.
    add = f" (git add -f {files[1].name}: .gitignore leaves it out)" if leaves_out_accounts(root) else ""
    return Result(data, [*lines, f"these files hold no secret: commit them{add}", f"next: {step}"], wraps=True)
