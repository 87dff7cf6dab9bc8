"""``blobsync demo``: runs the main commands on a real data set, against an embedded blob server.

The data set is files found on this machine. Every step runs the real command in a separate process, as a user
would type it; the result is then verified independently, by checksums and by the command's own ``--json``.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shlex
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from blobsync.base.errors import BlobsyncError, UsageError
from blobsync.base.process import ProcessRunner, python_module
from blobsync.base.redaction import Secret
from blobsync.cli.commands import NO_CLUSTER, Commands, argument, option
from blobsync.cli.output import Result
from blobsync.cli.session import Session
from blobsync.config.scaffold import NewFile, StorageAnswers, first_files, write_files
from blobsync.emulator import Emulator, EmulatorState, make_container, new_key

app = Commands()


@app.command("demo", takes=NO_CLUSTER)
def demo(
    session: Session,
    folder: Annotated[
        Path | None, argument(metavar="[FOLDER]", help="A new folder for the demo. Default: a temporary one.")
    ] = None,
    keep: Annotated[bool, option("--keep", help="Keep the folder and the blob server afterwards.")] = False,
) -> Result:
    """Carry a real data set through the whole main job on this machine, showing each command as it goes.

    Needs no account: the blob server is Azurite, installed on first use.

    \b
      blobsync demo
      blobsync demo try-it --keep
    """
    if session.json:
        raise UsageError("demo shows its commands as they run, so it has no --json")
    shown = run_demo(folder, keep=keep, environ=session.environ, say=typer.echo)
    moved = f"{shown.files:,} files, {shown.size / 1e6:.1f} MB, {shown.commands} commands in {shown.seconds:.1f} s"
    lines = ["", f"All {len(shown.checks)} checks passed: {moved}."]
    if keep or folder is not None:
        lines.append(f"Kept: {shown.folder}/here and {shown.folder}/there.")
    if keep:
        lines.append("The blob server is still running; stop it with: blobsync emulator stop")
    return Result(lines=lines)


MAX_FILES = 2400
MAX_BYTES = 60_000_000
# Some libraries are so large that they would slow down the demo.
_MAX_FILE_BYTES = 4_000_000
_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages"}


def copy_data_set(target: Path, max_files: int = MAX_FILES) -> tuple[int, int]:
    """Copy Python's standard library and installed packages into ``target``, up to the limits; returns how many files,
    and their bytes."""
    files = size = 0
    for source, name in _readable_files():
        length = source.stat().st_size
        if length > _MAX_FILE_BYTES:
            continue
        if files >= max_files or size + length > MAX_BYTES:
            break
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target / name)
        files, size = files + 1, size + length
    return files, size


def _readable_files() -> Iterator[tuple[Path, Path]]:
    """The files, each with its name in the data set."""
    for folder in (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")):
        for at, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
            for path in (Path(at, name) for name in sorted(names)):
                if path.is_file() and not path.is_symlink() and os.access(path, os.R_OK):
                    yield path, path.relative_to(folder.parent)


def change_some(folder: Path) -> tuple[str, ...]:
    """Change files in three ways, and touch a fourth; returns the changed paths, relative to ``folder``."""
    small = [path for path in sorted(folder.rglob("*.py")) if 1000 < path.stat().st_size < 100_000]
    grown, swapped, touched = small[0], small[len(small) // 2], small[-1]
    with grown.open("ab") as file:
        file.write(b"\n# one more line\n")
    old = swapped.stat()
    content = swapped.read_bytes()
    swapped.write_bytes(content[::-1])
    # New content with the same size and an older time: neither time nor size shows the change.
    os.utime(swapped, ns=(old.st_atime_ns, old.st_mtime_ns - 10**15))
    touched.touch()
    added = folder / "added in the demo.txt"
    added.write_text("a new file\n", encoding="utf-8")
    return tuple(path.relative_to(folder).as_posix() for path in (grown, swapped, added))


def checksums(folder: Path) -> dict[str, str]:
    """Relative path -> SHA-256 of every file below ``folder``."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# The default cluster, and one in another storage account.
_HOME, _AWAY = "aml", "east"
_ACCOUNTS = {_HOME: "demowest", _AWAY: "demoeast"}
_PATH = "data/library"


def run_demo(
    folder: Path | None,
    *,
    keep: bool,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    max_files: int = MAX_FILES,
) -> ShownCommands:
    """Run the whole demo; returns what was shown. Raises ``BlobsyncError`` at the first unexpected result.

    ``folder`` must be new or empty; None takes a temporary one. ``keep`` leaves it and the server behind.
    ``max_files`` limits the data set.
    """
    if folder and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} already exists and is not empty", hint="choose a new folder")
    emulator = Emulator(environ=environ, note=say)
    keys = {account: new_key() for account in _ACCOUNTS.values()}
    own = Path(tempfile.mkdtemp(prefix="blobsync-demo-")) if folder is None else folder.absolute()
    try:
        server = nullcontext(emulator.start(keys, in_memory=True)) if keep else emulator.session(keys)
        with server as state:
            show = ShownCommands(own, environ, say)
            _write_projects(own, state, keys)
            _play(show, own / "here" / _PATH, own / "there" / _PATH, max_files)
    finally:
        if not keep and folder is None:
            shutil.rmtree(own, ignore_errors=True)
    return show


def _write_projects(folder: Path, state: EmulatorState, keys: Mapping[str, Secret]) -> None:
    """Write ``aux_data/`` of two checkouts of a project whose ``data`` is in one container per cluster."""
    for cluster, account in _ACCOUNTS.items():
        container, key = state.container(account, "research"), keys[account]
        make_container(container, key)
        place = (container.account, container.name, "key", container.endpoint)
        of_cluster, of_account = first_files(StorageAnswers(*place, ("data",), "projects/demo", cluster))
        values = {**of_account.values, "account_key": key.reveal()}
        for root in (folder / "here", folder / "there"):
            write_files(root, [of_cluster, NewFile(of_account.name, "", values, is_private=True)])


class ShownCommands:
    """Runs commands below ``folder``, prints them, and measures their time in all (``seconds``). ``files`` of ``size``
    bytes are the data set."""

    def __init__(self, folder: Path, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.folder = folder
        self.say = say
        self.checks: list[str] = []
        self.commands, self.seconds = 0, 0.0
        self.files = self.size = 0
        self._runner = ProcessRunner()
        # Remove variables of the user's shell that point at another configuration or set a proxy for 127.0.0.1.
        kept = {name: value for name, value in environ.items() if name != "AML_CONFIG_PATH"}
        self._environ = {**kept, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}

    def run(self, place: str, *words: str) -> None:
        """Run one command in the project ``place``; it must succeed."""
        shown = shlex.join(["blobsync", *words])
        self.say(f"\n{place}$ {shown}")
        started = time.monotonic()
        code = self._runner.attach((*python_module("blobsync"), *words), env=self._environ, cwd=self.folder / place)
        self.commands, self.seconds = self.commands + 1, self.seconds + time.monotonic() - started
        if code:
            raise BlobsyncError(f"the demo stopped: {shown} ended with exit code {code}")

    def ask(self, *words: str) -> dict[str, Any]:
        """Run one command with ``--json``; returns its ``data``."""
        words = (*words, "--json")
        argv = (*python_module("blobsync"), *words)
        done = self._runner.run(argv, env=self._environ, cwd=self.folder / "here")
        if done.returncode:
            ended = f"{shlex.join(['blobsync', *words])} ended with exit code {done.returncode}"
            raise BlobsyncError(f"the demo stopped: {ended}: {done.stderr[-500:]}")
        data: dict[str, Any] = json.loads(done.stdout)["data"]
        return data

    def check(self, what: str, true: bool) -> None:
        if not true:
            raise BlobsyncError(f"the demo stopped: this check failed: {what}")
        self.say(f"   checked: {what}")
        self.checks.append(what)


def _play(show: ShownCommands, here: Path, there: Path, max_files: int) -> None:
    show.say("\n== A project with two storage accounts, checked out in two places, and a data set from this machine")
    show.files, show.size = copy_data_set(here, max_files)
    show.say(f"{_PATH}: {show.files:,} files, {show.size / 1e6:.1f} MB, of this machine's Python and its packages")
    show.run("here", "config", "check")
    show.run("here", "resolve", _PATH)

    show.say("\n== Upload it, and list it")
    show.run("here", "u", _PATH)
    show.run("here", "ls", _PATH)
    show.run("here", "du", _PATH)
    show.check(f"the container holds {show.files:,} blobs", show.ask("ls", "-r", _PATH)["count"] == show.files)

    show.say("\n== Change two files, add one, touch a fourth; upload again: only differences are transferred")
    *_, added = change_some(here)
    show.run("here", "plan", "u", _PATH)
    show.run("here", "u", _PATH)
    show.check("a third upload finds nothing to move", show.ask("u", _PATH)["transferred"] == 0)
    show.check("the new file is there", show.ask("ls", "-r", "-l", f"{_PATH}/{added}")["count"] == 1)

    show.say("\n== Copy it to the other account, and download it from there into the other checkout")
    show.say("(One account fetches from the other; what the emulator cannot fetch goes through this machine.)")
    show.run("here", "-c", _AWAY, "-f", _HOME, "u", _PATH)
    show.run("there", "-c", _AWAY, "d", _PATH)
    mine = checksums(here)
    show.check(f"all {len(mine):,} files are equal by SHA-256", mine == checksums(there))

    show.say("\n== A link that opens one file for an hour")
    name = next(name for name in mine if name.endswith(".py"))
    words = ("url", f"{_PATH}/{name}", "--expiry", "1h")
    show.run("here", *words)
    url = urlsplit(str(show.ask(*words)["urls"][0]["url"]))
    with closing(http.client.HTTPConnection(url.netloc, timeout=30)) as connection:
        connection.request("GET", f"{url.path}?{url.query}")
        body = connection.getresponse().read()
    show.check("the link gives out that file", hashlib.sha256(body).hexdigest() == mine[name])
