"""``login``: stores the user's own SAS or account key in a file outside every project."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from blobsync.base.errors import UsageError
from blobsync.base.events import Phase
from blobsync.cli.commands import NO_CLUSTER, Commands, argument, option
from blobsync.cli.output import Result
from blobsync.cli.session import Session, ask_secret, ask_until, ask_word, can_ask, looking
from blobsync.config.account_files import files_for_login, folder_in_use
from blobsync.config.accounts import AccountFile, first_of, signed_in
from blobsync.config.loader import project_path
from blobsync.config.logins import StoredLogin, forget_login, logins_file, parse_login, save_login, stored_logins
from blobsync.config.model import StorageAccount

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from blobsync.base.check_results import CheckResult
    from blobsync.base.locations import BlobContainer

_MARKS = {"ok": "works", "untried": "not tried", "warn": "note", "fail": "does not work"}


app = Commands()


@app.command("login", takes=NO_CLUSTER)
def login(
    session: Session,
    file: Annotated[
        str | None, argument(metavar="[FILE]", help="The storage account file. Default: the one without a key.")
    ] = None,
    identity: Annotated[
        bool, option("--identity", help="Use your Azure login, and forget a stored SAS or key.")
    ] = False,
    no_check: Annotated[bool, option("--no-check", help="Store it without trying it.")] = False,
    forget: Annotated[bool, option("--forget", help="Remove the SAS or key that is stored.")] = False,
    show: Annotated[bool, option("--list", help="List the containers that you stored one for.")] = False,
) -> Result:
    """Store your own SAS or account key for a container, after trying what it allows.

    For a storage account file that holds neither, so that the file can be in git. It asks, and does not show what you
    type or paste; without a terminal it reads standard input. What it stores is in your own configuration folder,
    readable for you alone, and used in each project whose files name that container.

    \b
      blobsync login                               a SAS, its URL, or a key
      blobsync login aux_data/configs/eu.yaml      where a project has several
      blobsync login < sas.txt                     from a file, in a script
      blobsync login --identity                    az login and the like
      blobsync login --forget
    """
    if show:
        return _listed(session)
    root, name, account = _chosen_account(session, file)
    if forget:
        return _forgotten(session, account)
    _demand_kind(account, "identity" if identity else None)
    given = None if identity else given_login(session, account)
    with looking():
        checks = () if no_check else try_login(session, account, given, folder_in_use(root, name.removeprefix("./")))
    return _stored(session, account, given, checks)


def _demand_kind(account: StorageAccount, kind: str | None) -> None:
    """Raise ``UsageError`` if the account file allows only another kind of credential."""
    if kind is not None and account.auth not in (None, kind):
        raise UsageError(
            f"{account.file} says auth: {account.auth}, so no {kind} is used for it",
            hint=f"take auth out of {account.file}: then each user chooses",
        )


def try_login(
    session: Session, account: StorageAccount, given: StoredLogin | None, folder: str
) -> tuple[CheckResult, ...]:
    """What the login ``given`` (None: the user's identity) allows. Raises ``CredentialError`` if it opens nothing."""
    from blobsync.project.doctor import examine_login

    session.listener.emit(Phase("trying"))
    return examine_login(signed_in(account, given) if given else account, folder, environ=session.environ)


def check_lines(checks: Sequence[CheckResult]) -> list[str]:
    """The results of the checks as text."""
    shown = [each for each in checks if each.name not in ("account", "recovery")]
    return [f"  {each.name}: {_MARKS[each.status.value]}: {each.detail}" for each in shown]


def check_data(checks: Sequence[CheckResult]) -> list[dict[str, Any]]:
    """The results of the checks as JSON."""
    return [{"check": each.name, "status": each.status.value, "detail": each.detail} for each in checks]


def _secret_question(container: BlobContainer, auth: str | None, more: str = "") -> str:
    what = {"sas": "SAS", "key": "account key"}.get(auth or "", "SAS or account key")
    return f"{what} for {container} (what you type is not shown{more})"


def _chosen_account(session: Session, file: str | None) -> tuple[Path, str, StorageAccount]:
    root = session.root()
    name = file or _only_file(session, root)
    found = AccountFile(project_path(root, name, session.environ), name, session.environ)
    if found.without_login is None:
        raise first_of(found.problems)
    if not found.takes_login:
        raise UsageError(f"{name} holds a credential itself, which is used", hint=f"remove it from {name} first")
    return root, name, found.without_login


def _only_file(session: Session, root: Path) -> str:
    names = files_for_login(root, session.environ)
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError(
            "no storage account file of this project takes a login: each holds its own credential, or there is none",
            hint="blobsync config check lists the files; blobsync config new makes one",
        )
    if not can_ask(session):
        raise UsageError(f"several storage account files take a login: {', '.join(names)}", hint="blobsync login FILE")
    return ask_word(session, f"which of {', '.join(names)}", *names)


def given_login(session: Session, account: StorageAccount) -> StoredLogin:
    """Read the SAS or key from a hidden prompt or from standard input. Raises ``UsageError``."""

    def read(text: str) -> StoredLogin:
        if not text:
            hint = "for your Azure login instead: blobsync login --identity, blobsync config new --auth identity"
            raise UsageError("nothing was given", hint=hint)
        return _parsed(text, account)

    question = _secret_question(account.container, account.auth)
    if sys.stdin.isatty():
        return ask_until(session, lambda: ask_secret(session, question), read)
    return read(ask_secret(session, question))


def another_login(session: Session, account: StorageAccount) -> StoredLogin | None:
    """Ask for another SAS or key after one that was refused, unseen again; None if the user gives none."""
    question = _secret_question(account.container, account.auth, "; Enter alone: change something else, or stop")
    return ask_until(
        session, lambda: ask_secret(session, question), lambda text: _parsed(text, account) if text else None
    )


def _parsed(text: str, account: StorageAccount) -> StoredLogin:
    found = parse_login(text, account.container)
    _demand_kind(account, found.kind)
    return found


def _stored(
    session: Session, account: StorageAccount, given: StoredLogin | None, checks: Sequence[CheckResult]
) -> Result:
    if given is None:
        forget_login(account.container, session.environ)
        done = f"your Azure login is used for {account.container}"
    else:
        save_login(account.container, given, session.environ)
        done = f"stored your {'SAS' if given.kind == 'sas' else 'key'} for {account.container} in "
        done += str(logins_file(session.environ))
    data = {
        "file": account.file,
        "container": str(account.container),
        "auth": given.kind if given else "identity",
        "stored": given is not None,
        "checks": check_data(checks),
    }
    return Result(data, [done, *check_lines(checks)], wraps=True)


def _forgotten(session: Session, account: StorageAccount) -> Result:
    had = forget_login(account.container, session.environ)
    data = {"file": account.file, "container": str(account.container), "forgotten": had}
    return Result(
        data, [f"forgotten: {account.container}" if had else f"nothing is stored for {account.container}"], wraps=True
    )


def _listed(session: Session) -> Result:
    found = stored_logins(session.environ)
    data = {"logins": [{"container": place, "auth": kind} for place, kind in found.items()]}
    return Result(data, [f"{kind}  {place}" for place, kind in found.items()] or ["no SAS or key is stored"])
