"""``config`` but for ``new``: checks and trusts; and ``emulator``."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from blobsync.base.errors import BlobsyncError, ConfigError, EmulatorError
from blobsync.base.exit_codes import ExitCode
from blobsync.base.formatting import count_text, zulu_text
from blobsync.cli.confirm import confirm
from blobsync.cli.new_config import config_new
from blobsync.cli.output import Result, fields_of
from blobsync.cli.session import (
    ITS_NAME,
    NO_CLUSTER,
    TWO_CLUSTERS,
    Commands,
    OptionalPaths,
    Session,
    argument,
    option,
)
from blobsync.config.account_files import account_file_names
from blobsync.config.accounts import AccountFile
from blobsync.config.check import CheckedFile, ClusterChoice, by_line, check_project
from blobsync.config.job_keys import refusal_of
from blobsync.config.loader import load_cluster
from blobsync.config.mapping import entry_url
from blobsync.config.project_root import current_folder, find_project
from blobsync.config.scaffold import EmulatorAccount, follow_emulator
from blobsync.config.trusted_code import demand_digest, forget_code, load_known_code, trust_code
from blobsync.config.trusted_docker import TRUSTED_DOCKER, DockerArgs
from blobsync.local.state_dir import open_state, trust_state

if TYPE_CHECKING:
    from pathlib import Path

    from blobsync.emulator import Emulator, EmulatorState


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


config_group.command("new", takes=ITS_NAME)(config_new)


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
    from blobsync.config.trusted_links import TRUSTED_LINKS
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
    names, own = tuple(account_file_names(root)), emulator.own_account()
    written = follow_emulator(root, own, names)
    return written, tuple(_made(root, names, own, session.environ))


def _made(root: Path, names: Sequence[str], own: EmulatorAccount, environ: Mapping[str, str]) -> Iterator[str]:
    """Create the missing containers of the emulator's account that these account files name."""
    from blobsync.emulator import make_container

    for name in names:
        account = AccountFile(root / name, name, environ).account
        key = account.account_key if account and account.blob_endpoint == own.endpoint else None
        if account and key and key.reveal() == own.key.reveal() and make_container(account.container, own.key):
            yield account.container_name


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
