"""The pinned Azurite: found, or installed by npm into the user's data directory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from blobsync.base.errors import EmulatorError
from blobsync.base.process import ProcessRunner
from blobsync.emulator.nodejs import NodeJs, last_lines, put_in_place

_HERE = Path(__file__).parent
_NPM_SECONDS = 900.0
_MAIN = Path("node_modules") / "azurite" / "dist" / "src" / "blob" / "main.js"


def pinned_version() -> str:
    """The version that ``package.json`` beside this module names; the lock file holds its checksums."""
    manifest = json.loads((_HERE / "package.json").read_text(encoding="utf-8"))
    return str(manifest["dependencies"]["azurite"])


def azurite_home(home: Path) -> Path:
    """Where the pinned version lives below blobsync's data directory."""
    return home / f"azurite-{pinned_version()}"


def find_azurite(home: Path, *, environ: Mapping[str, str]) -> Path | None:
    """The server's main script: below ``$BLOBSYNC_AZURITE`` (a folder that npm installed into), or managed.

    Raises ``EmulatorError`` if ``BLOBSYNC_AZURITE`` is invalid.
    """
    given = environ.get("BLOBSYNC_AZURITE")
    if given:
        script = Path(given) / _MAIN
        if not script.is_file():
            raise EmulatorError(
                f"BLOBSYNC_AZURITE is {given}, which does not contain {_MAIN}",
                hint=f"run npm install azurite@{pinned_version()} in that folder, or unset BLOBSYNC_AZURITE",
            )
        return script
    script = azurite_home(home) / _MAIN
    return script if script.is_file() else None


def install_azurite(
    home: Path, nodejs: NodeJs, *, environ: Mapping[str, str], runner: ProcessRunner, note: Callable[[str], None]
) -> Path:
    """Install the pinned version with ``npm ci``, which checks each package against the lock file.

    Installs atomically. Returns the main script; raises ``EmulatorError`` with npm's last output.
    """
    target = azurite_home(home)
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    note(f"installing Azurite {pinned_version()} with npm into {target}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(_HERE / name, partial / name)
        argv = nodejs.npm_in(partial, "ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund")
        answer = runner.run(argv, env=nodejs.environ(environ), cwd=partial, timeout=_NPM_SECONDS)
        if answer.returncode != 0:
            raise EmulatorError(
                f"npm could not install Azurite {pinned_version()}: {last_lines(answer)}",
                hint="check that `npm ping` works; blobsync uses npm's own configuration (proxy, registry)",
            )
        put_in_place(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target / _MAIN
