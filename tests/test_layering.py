"""Who may import whom. A module imports from rows above its own or from its own row, never from below."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.source import Module, modules

# The nearest name counts: "azcopy" stands for everything in it.
ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "words: no I/O, nothing of ours but each other",
        (
            "ahead",
            "environment",
            "errors",
            "locations",
            "file_states",
            "plain_json",
            "redaction",
            "trusted_hosts",
            "user_data",
            "content_types",
        ),
    ),
    (
        "values and configuration: files at most, no network",
        (
            *("config", "globs", "ignore", "mapping", "names", "plan", "plan_file", "process", "sas"),
            *("code.secret_files", "code.secrets", "selection", "state_dir", "storage"),
            *("told", "trusted_links", "user_config"),
        ),
    ),
    (
        "facts and decisions",
        (
            *("connections", "engines", "extras", "fresh_look", "index", "interrupted", "ledger"),
            *("left_out", "legs", "local_errors", "local_files", "local_tree", "nodejs", "one_file"),
            *("outside_links", "pairs"),
            *("part_files", "planner", "receipts", "shapes", "survey", "verify"),
        ),
    ),
    (
        "stores and engines: how bytes move",
        (*("azcopy", "azure_store", "connect", "direct", "emulator", "relay", "rest", "worker_pool"),),
    ),
    (
        "work: plans made and carried out, archives made",
        (
            *("browse", "code.archive", "code.files", "code.git", "code.snapshot", "doctor", "engine_set"),
            "planning",
            "removal",
            "sharing",
            "settle",
            "transfer",
        ),
    ),
    ("the public API", ("code", "project")),
    ("jobs: through the public API", ("jobs",)),
    ("the command line", ("cli", "demo", "demo_data", "__main__")),
)

# Third-party packages, and standard modules that have one home.
GATES: dict[str, tuple[str, ...]] = {
    "azure": ("azure_store", "jobs.backends"),
    "pathspec": ("ignore",),
    "sqlite3": ("index", "jobs.history"),
    # The runner goes to compute nodes alone and cannot import anything of ours.
    "subprocess": ("process", "jobs.runner"),
    "tqdm": ("cli",),
    "typer": ("cli",),
    "urllib.request": ("jobs.runner",),
    "urllib3": ("azcopy", "jobs.backends", "rest"),
    "yaml": ("config", "jobs.backends"),
}

MODULES = modules()


def _short(name: str) -> str:
    return name.removeprefix("blobsync").removeprefix(".")


def _row(name: str) -> int | None:
    short = _short(name)
    while short:
        for number, (_, members) in enumerate(ROWS):
            if short in members:
                return number
        short = short.rpartition(".")[0]
    return None


def _is_in(name: str, homes: tuple[str, ...]) -> bool:
    short = _short(name)
    return any(short == home or short.startswith(home + ".") for home in homes)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_module_imports_from_its_row_or_above(module: Module) -> None:
    if module.name == "blobsync":
        return
    row = _row(module.name)
    assert row is not None, f"{module.file} stands in no row; add it to ROWS"
    below = []
    for line, name in module.imports():
        assert not name.startswith("."), f"{module.file}:{line}: imports are absolute"
        if name.startswith("blobsync.") and name != "blobsync.__version__":
            target = _row(name)
            if target is None or target > row:
                below.append(f"{module.file}:{line} imports {name}")
    assert not below, f"imports from below row {row} ({ROWS[row][0]}): {below}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_module_imports_only_what_has_its_home_there(module: Module) -> None:
    wrong = [
        f"{module.file}:{line} imports {name}"
        for line, name in module.imports()
        for package, homes in GATES.items()
        if (name == package or name.startswith(package + ".")) and not _is_in(module.name, homes)
    ]
    assert not wrong


def test_backends_do_not_import_each_other() -> None:
    shared = {"blobsync.jobs.backends", "blobsync.jobs.backends.base"}
    wrong = []
    for module in MODULES:
        if not module.name.startswith("blobsync.jobs.backends.") or module.name in shared:
            continue
        family = module.name.rpartition(".")[2].partition("_")[0]
        for line, name in module.imports():
            other = name.removeprefix("blobsync.jobs.backends.").partition("_")[0]
            if name.startswith("blobsync.jobs.backends.") and name not in shared and other != family:
                wrong.append(f"{module.file}:{line} imports {name}")
    assert not wrong


def test_every_row_names_modules_that_exist() -> None:
    names = {_short(module.name) for module in MODULES} | {_short(module.name).partition(".")[0] for module in MODULES}
    listed = {member for _, members in ROWS for member in members}
    assert not listed - names, "ROWS names modules that are gone"


def test_the_gates_and_rows_see_a_wrong_import() -> None:
    assert _row("blobsync.azcopy.driver") == _row("blobsync.direct.engine")
    assert _row("blobsync.nowhere") is None
    assert (_row("blobsync.cli.main") or 0) > (_row("blobsync.planner") or 0)
    assert _is_in("blobsync.jobs.history", GATES["sqlite3"])
    assert not _is_in("blobsync.indexes", GATES["sqlite3"])


# Only the gate may say that a name is safe; `grep -rn RelativeName blobsync` shows every place that relies on it.
_GATE = "blobsync.names"
_SAFE = {"RelativeName", "SafeName"}


def _calls(module: Module) -> Iterator[tuple[int, str, ast.Call]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            yield node.lineno, name, node


def test_names_from_outside_become_paths_through_one_gate() -> None:
    wrong = []
    for module in MODULES:
        for line, name, call in _calls(module):
            made = name in _SAFE or (name == "cast" and any(safe in ast.dump(call) for safe in _SAFE))
            if made and module.name != _GATE:
                wrong.append(f"{module.file}:{line}: a name is called safe that the gate has not seen")
    assert not wrong


# Who makes, writes, renames or deletes files, and which. Data of a project that has a name from outside is written
# by the first row alone, below descriptors; all others write files that they name themselves.
WRITERS: dict[str, str] = {
    **dict.fromkeys(("local_files", "part_files"), "what comes from outside: downloads and logs"),
    "trusted_links": "what the user agreed to, in the user's own configuration",
    **dict.fromkeys(("azcopy", "receipts", "state_dir", "plan_file", "told"), "our own records and staging folders"),
    **dict.fromkeys(("code", "config.scaffold", "demo", "demo_data"), "what the user asked to be made here"),
    **dict.fromkeys(("emulator", "nodejs"), "programs in the user's data folder"),
    **dict.fromkeys(("jobs.history", "jobs.local_queue", "jobs.run_files", "jobs.foreground"), "jobs on this machine"),
    **dict.fromkeys(("jobs.supervisor", "jobs.backends.local"), "the same"),
    **dict.fromkeys(("jobs.runner", "jobs.login_side", "jobs.backends.aml_start"), "files on a node"),
    **dict.fromkeys(("process", "cli.output"), "the streams of programs"),
}
_WRITING = {
    *("write_text", "write_bytes", "touch", "mkdir", "makedirs", "unlink", "rmdir", "rmtree", "removedirs", "renames"),
    *("symlink_to", "hardlink_to", "copyfile", "copytree", "copy2", "extractall", "truncate", "ftruncate", "mkfifo"),
}
# These words have other meanings on texts, lists and dataclasses.
_WRITING_OF_OS = {"open", "remove", "rename", "replace", "link", "symlink", "chmod", "write", "pwrite"}


def _writes(name: str, call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if isinstance(owner, ast.Name) and owner.id in ("os", "shutil"):
        reading = name == "open" and "O_RDONLY" in ast.dump(call)
        return not reading and name in _WRITING | _WRITING_OF_OS | {"move", "copy"}
    if name == "open":
        modes = [word.value for word in (*call.args[:2], *(key.value for key in call.keywords if key.arg == "mode"))
                 if isinstance(word, ast.Constant) and isinstance(word.value, str)]  # fmt: skip
        return any(re.fullmatch(r"[rbt]*[wax+][wax+bt]*", mode) for mode in modes)
    return name in _WRITING


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_only_rooms_for_files_write_and_delete_files(module: Module) -> None:
    wrong = [f"{module.file}:{line}: {name}" for line, name, call in _calls(module) if _writes(name, call)]
    assert not wrong or _is_in(module.name, tuple(WRITERS)), "give the work to a module of WRITERS"


def test_every_writer_is_a_module_that_writes() -> None:
    writing = {
        home for home in WRITERS for module in MODULES
        if _is_in(module.name, (home,)) and any(_writes(name, call) for _, name, call in _calls(module))
    }  # fmt: skip
    assert writing == set(WRITERS)
