"""``config`` and ``emulator``.

``config new`` is a dialogue on a terminal, takes options in a script, and writes examples to fill in without either.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from blobsync.base.errors import (
    BlobsyncError,
    ConfigError,
    ContainerNotFoundError,
    CredentialError,
    EmulatorError,
    StorageError,
    UsageError,
)
from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, zulu_text
from blobsync.base.records import NamedTuple
from blobsync.cli.commands import ITS_NAME, NO_CLUSTER, TWO_CLUSTERS, Commands, OptionalPaths, argument, option
from blobsync.cli.login import another_login, check_data, check_lines, given_login, try_login
from blobsync.cli.output import CommandInterruptedError, Result, fields_of
from blobsync.cli.session import Session, ask_text, ask_until, ask_word, can_ask, confirm
from blobsync.config.account_files import account_file_names
from blobsync.config.accounts import AccountFile, signed_in
from blobsync.config.check import CheckedFile, ClusterChoice, by_line, check_project
from blobsync.config.job_keys import refusal_of
from blobsync.config.loader import load_cluster
from blobsync.config.logins import StoredLogin, load_login, logins_file, save_login
from blobsync.config.mapping import entry_url
from blobsync.config.model import DEFAULT_CLUSTER, StorageAccount
from blobsync.config.project_root import current_folder, find_project
from blobsync.config.scaffold import (
    StorageAnswers,
    account_file,
    account_values,
    base_folder,
    cluster_file,
    demand_new,
    first_files,
    folder_names,
    follow_emulator,
    ignore_data,
    leaves_out_accounts,
    new_project,
    split_account,
    write_files,
)
from blobsync.config.trusted_code import demand_digest, forget_code, load_known_code, trust_code
from blobsync.config.trusted_docker import TRUSTED_DOCKER, DockerArgs
from blobsync.config.yaml_document import Document
from blobsync.local.state_dir import open_state, trust_state

if TYPE_CHECKING:
    from blobsync.base.check_results import CheckResult
    from blobsync.emulator import Emulator, EmulatorState


T = TypeVar("T")

app = Commands()
config_group = app.group("config", "Check the configuration files, or create them.")
emulator_group = app.group("emulator", "Run a local blob server (Azurite) to try things out.")


@config_group.command("check", takes=(*TWO_CLUSTERS, "num_gpu"))
def config_check(session: Session) -> Result:
    """Check every cluster file, account file and workspace file, and report every problem at once.

    Exits with 2 if something is wrong. Warnings exit with 0; they also tell what transfers or submit would refuse.
    With -c or -p it checks that cluster with those changes. Does not use the network: see 'blobsync doctor'.

    \b
      blobsync config check
      blobsync config check -c eu
    """
    from blobsync.local.ignore_patterns import bad_patterns

    root = session.root()
    checked = check_project(root, clusters=_chosen(session), environ=session.environ, further=bad_patterns)
    problems = [problem for item in checked for problem in item.problems]
    found = [_Found(item, *_refused(item, session.environ)) for item in checked]
    reported = [*map(str, problems), *(error.message for each in found for error in each.transfers)]
    data = {"files": [_checked_data(each, reported) for each in found]}
    for file in data["files"]:
        for warning in file["warnings"]:
            session.note(warning)
    return Result(data, map(_checked_line, found), problems, ExitCode.USAGE if problems else ExitCode.DONE, wraps=True)


class _Found(NamedTuple):
    """A file, with the errors that transfers that need it would raise, and those of submit."""

    item: CheckedFile
    transfers: Sequence[BlobsyncError]
    submit: Sequence[BlobsyncError]


def _chosen(session: Session) -> list[ClusterChoice]:
    """The clusters of -c and -f; empty for all."""
    overrides = session.overrides()
    own = [ClusterChoice(session.cluster, overrides)] if session.cluster or session.from_cluster or overrides else []
    return own + ([ClusterChoice(session.from_cluster)] if session.from_cluster else [])


def _refused(item: CheckedFile, environ: Mapping[str, str]) -> tuple[Sequence[BlobsyncError], Sequence[BlobsyncError]]:
    from blobsync.jobs.preflight import refusals
    from blobsync.store.connect import demand_usable

    accounts = [item.account] if item.account else []
    if item.cluster:
        accounts = [entry.account for entry in (*item.cluster.folders, item.cluster.code) if entry]
    transfers: dict[str, BlobsyncError] = {}
    for account in accounts:
        try:
            demand_usable(account, environ)
        except BlobsyncError as error:
            transfers[error.message] = error
    submit = refusals(item.cluster, environ) if item.cluster else [refusal_of([one]) for one in item.job_refusals]
    return list(transfers.values()), submit


def _warnings(found: _Found, reported: Sequence[str]) -> list[str]:
    """Problems that are no errors of the file: warnings, and refusals that nothing else reports."""
    item = found.item
    known = [*item.warnings, *reported]
    new = [
        error for error in found.submit if not any(getattr(error, "detail", error.message) in text for text in known)
    ]
    # Problems of an account are reported with its own file.
    usable = [] if item.cluster else found.transfers
    told = (
        *item.warnings,
        *(_refusal(error, "transfers and submit refuse it") for error in usable),
        *(_refusal(error, "submit refuses it, transfers do not") for error in new),
    )
    return list(by_line(item.file, told))


def _refusal(error: BlobsyncError, by: str) -> str:
    return f"{error.message}: {by}" + (f"; {error.hint}" if error.hint else "")


def _checked_data(found: _Found, reported: Sequence[str]) -> dict[str, Any]:
    item = found.item
    return {
        "file": item.file,
        "ok": not item.problems,
        "problems": [problem.message for problem in item.problems],
        "warnings": _warnings(found, reported),
        "submit_refuses": bool(found.submit) if item.cluster else None,
        "folders": {entry.prefix: entry_url(entry) for entry in item.cluster.folders} if item.cluster else None,
        "platform": item.cluster.platform if item.cluster else None,
    }


def _checked_line(found: _Found) -> str:
    item = found.item
    if item.problems:
        return f"{item.file}: {count_text(len(item.problems), 'mistake')}"
    if item.cluster:
        entries = ", ".join(item.cluster.prefixes) or "no folder entries"
        if found.transfers:
            return f"{item.file}: valid, but transfers would be refused ({entries})"
        if found.submit:
            return f"{item.file}: valid for transfers only, submit would reject it ({entries})"
        return f"{item.file}: good ({item.cluster.platform}; {entries})"
    return f"{item.file}: valid, but it cannot be used" if found.transfers else f"{item.file}: good"


# Placeholder while the container is unknown.
_ANY_CONTAINER = "container"
_KINDS = ("sas", "key", "identity")
_WITHOUT_LOGIN = (
    "run az login first; or log in with a SAS or a key (--auth sas, --auth key); --no-check does not try it"
)


@config_group.command("new", takes=ITS_NAME)
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


@config_group.command("trust-link", takes=NO_CLUSTER)
def config_trust_link(
    session: Session,
    paths: OptionalPaths = None,
    forget: Annotated[bool, option("--forget", help="Stop trusting these links.")] = False,
) -> Result:
    """Trust symlinks that lead out of the project: from now on blobsync reads and writes what they point to.

    Without PATH, lists the trusted links. A link that changes later must be trusted again.
    The list is kept in your own configuration, never in the project.

    \b
      blobsync config trust-link data/coco
      blobsync config trust-link --forget data/coco
    """
    from blobsync.config.trust_store import TRUSTED_LINKS
    from blobsync.local.link_policy import agree
    from blobsync.local.link_policy import forget as withdraw

    cwd = current_folder(session.environ)
    root = find_project(cwd, session.environ)
    change = withdraw if forget else agree
    links = change(root, cwd, paths, session.environ) if paths else sorted(TRUSTED_LINKS.load(root, session.environ))
    word = "no longer trusted" if forget and paths else "trusted"
    data = {"links": [{"path": link.link, "target": link.target} for link in links], "trusted": word == "trusted"}
    return Result(data, [f"{word}: {link.link} -> {link.target}" for link in links] or ["no link is trusted"])


@config_group.command("trust-state", takes=NO_CLUSTER)
def config_trust_state(
    session: Session,
    both: Annotated[
        bool, option("--both", help="It is one project, seen under this path and the earlier one.")
    ] = False,
    yes: Annotated[bool, option("-y", "--yes", help="Do not ask before it is closed to others.")] = False,
) -> Result:
    """Accept the state folder in this project as your own: what blobsync remembers of files and jobs here.

    It is needed once after you moved or copied a project, or used an earlier version of blobsync in it. If
    somebody else made the folder, remove it instead: its records would say which files need no check. If others can
    write to it, this says who, asks, and closes it to them.

    \b
      blobsync config trust-state
      blobsync config trust-state --both
    """
    root = session.root()
    exposed = open_state(root, session.environ)
    if exposed and not yes:
        confirm(session, exposed.question, looks="ls -laR .blobsync shows who may write there")
    found = trust_state(root, session.environ, both=both)
    paths = list(found.seal.paths)
    data = {"folder": str(found.folder), "id": found.seal.id, "projects": paths, "accepted": found.is_new}
    word = "accepted" if found.is_new else "yours already"
    closed = list(map(str, found.closed))
    lines = [f"closed to others: {path}" for path in closed] + [f"{word}: {found.folder}"]
    return Result({**data, "closed": closed}, [*lines, *(f"for the project {path}" for path in paths)])


@config_group.command("trust-code", takes=NO_CLUSTER)
def config_trust_code(
    session: Session,
    digests: Annotated[
        list[str] | None, argument(metavar="DIGEST...", help="Digests of code, as an error of submit shows them.")
    ] = None,
    forget: Annotated[bool, option("--forget", help="Stop trusting this code.")] = False,
) -> Result:
    """Trust code that was not published from here: from now on jobs of the project may run it.

    For code of a colleague, or of your own from another machine. A digest is one content: what is published there later
    must be trusted again. Without DIGEST, lists what is trusted, and what 'init' published from here.
    The list is kept in your own configuration, never in the project or its container.

    \b
      blobsync config trust-code
      blobsync config trust-code --forget DIGEST
    """
    root = session.root()
    given = [demand_digest(text, "trust-code") for text in digests or ()]
    if given:
        (forget_code if forget else trust_code)(root, given, session.environ)
    known = load_known_code(root, session.environ)
    lines = [f"{'no longer trusted' if forget else 'trusted'}: {digest}" for digest in given or known.trusted]
    published = [{"code_path": one.place, "digest": one.digest, "at": zulu_text(one.at)} for one in known.published]
    if not given:
        last = {one.place: one for one in known.published}.values()
        lines += [f"published from here: {one.digest} at {one.place}" for one in last]
    data = {"trusted": list(known.trusted), "published": published}
    return Result(data, lines or ["no code is trusted, and none was published from here"])


@config_group.command("trust-docker", takes=ITS_NAME)
def config_trust_docker(
    session: Session,
    forget: Annotated[bool, option("--forget", help="Trust no options in this project any more.")] = False,
) -> Result:
    """Trust the docker.args of the cluster file, though they reach beyond the project: 'local' and 'initc' use them.

    Such as --privileged, or -v with a folder elsewhere: they may give the programs in the image what root has on this
    machine. Exactly these words are trusted; if the file changes, they must be trusted again.
    The list is kept in your own configuration, never in the project.

    \b
      blobsync config trust-docker
      blobsync config trust-docker --forget
    """
    root = session.root()
    if forget:
        known = TRUSTED_DOCKER.load(root, session.environ)
        TRUSTED_DOCKER.change(root, session.environ, lambda _: ())
        lines = [f"no longer trusted: {shlex.join(words)}" for words in sorted(known)] or ["no options are trusted"]
        return Result({"trusted": []}, lines)
    cluster = load_cluster(root, session.cluster, environ=session.environ)
    args = DockerArgs.of(cluster)
    new = {args.words} if args.reaching is not None else set()
    trusted = TRUSTED_DOCKER.change(root, session.environ, lambda known: known | new)
    lines = [f"trusted: {shlex.join(words)}" for words in sorted(trusted)]
    return Result(
        {"trusted": [list(words) for words in sorted(trusted)]},
        lines or [f"nothing in docker.args of {cluster.file} reaches beyond the project"],
    )


@emulator_group.command("start", takes=NO_CLUSTER)
def emulator_start(
    session: Session,
    port: Annotated[
        int | None,
        option(metavar="N", min=0, max=65535, help="The port on 127.0.0.1; 0: a free one. Default: as last time."),
    ] = None,
    in_memory: Annotated[bool, option("--in-memory", help="Keep all data in memory; stopping deletes it.")] = False,
) -> Result:
    """Start a blob server on this machine, installing it on first use, and make the containers that the account files
    of the project that you are in name; a server that runs already stays.

    The key is yours alone: 'blobsync config new --emulator' writes it into a new project. If another program has the
    port, the emulator takes a free one, keeps to it, and writes it into the account files of the project that you are
    in; in your other projects, run this command once more.

    \b
      blobsync emulator start
    """
    emulator = _emulator(session)
    before = emulator.status()
    state = emulator.start(port=port, in_memory=in_memory)
    words = "already running" if before == state else "running"
    written, made = _follow(session, emulator)
    data = {**_state_data(state), "already_running": before == state, "written": list(written), "made": list(made)}
    lines = [f"{words} at {state.endpoint(state.accounts[0])}, process {state.pid}"]
    lines += [f"wrote port {state.port} into {name}" for name in written]
    return Result(data, [*lines, *(f"created the container {name}" for name in made)], wraps=True)


def _follow(session: Session, emulator: Emulator) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write the port into those account files of the current folder's project that have this emulator's key, and make
    their containers; returns the names of both."""
    try:
        root = session.root()
    except ConfigError:
        return (), ()
    from blobsync.emulator import make_container

    names, own, made = tuple(account_file_names(root)), emulator.own_account(), []
    written = follow_emulator(root, own, names)
    for name in names:
        account = AccountFile(root / name, name, session.environ).account
        key = account.account_key if account and account.blob_endpoint == own.endpoint else None
        if account and key and key.reveal() == own.key.reveal() and make_container(account.container, own.key):
            made.append(account.container_name)
    return written, tuple(made)


@emulator_group.command("stop", takes=NO_CLUSTER)
def emulator_stop(session: Session) -> Result:
    """Stop the blob server on this machine; its blobs are kept, unless it was started with --in-memory.

    \b
      blobsync emulator stop
    """
    state = _emulator(session).stop()
    if state is None:
        return Result({"running": False}, ["no emulator was running"])
    return Result({**_state_data(state), "running": False}, [f"stopped process {state.pid}"], wraps=True)


@emulator_group.command("status", takes=NO_CLUSTER)
def emulator_status(session: Session) -> Result:
    """Show whether the blob server is running, and where.

    \b
      blobsync emulator status
    """
    state = _emulator(session).status()
    if state is None:
        return Result({"running": False}, ["not running; start it: blobsync emulator start"])
    kept = f"blobs in {state.location}" if state.location else "all in memory"
    lines = [f"running at {state.endpoint(state.accounts[0])}, process {state.pid}, Azurite {state.version}, {kept}"]
    return Result(_state_data(state), lines, wraps=True)


def _emulator(session: Session) -> Emulator:
    from blobsync.emulator import Emulator

    return Emulator(environ=session.environ, note=session.note)


def _state_data(state: EmulatorState) -> dict[str, Any]:
    if not state.accounts:
        raise EmulatorError("the emulator runs without an account", hint="blobsync emulator stop, then start it again")
    known = fields_of(state, "pid", "port", "location", "version")
    return {"running": True, **known, "endpoint": state.endpoint(state.accounts[0])}
