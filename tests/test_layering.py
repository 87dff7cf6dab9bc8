"""Who may import whom. A module imports from rows above its own or from its own row, never from below."""

from __future__ import annotations

import pytest

from tests.source import Module, modules

# The nearest name counts: "azcopy" stands for everything in it.
ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("words: no I/O, nothing of ours but each other", ("ahead", "errors", "locations", "user_data", "content_types")),
    (
        "values and configuration: files at most, no network",
        (
            *("config", "globs", "ignore", "mapping", "names", "plan", "plan_file", "process", "sas"),
            *("code.secrets", "selection", "state_dir", "storage"),
        ),
    ),
    (
        "facts and decisions",
        (
            *("connections", "engines", "fresh_look", "index", "ledger", "local_errors", "local_files"),
            *("local_tree", "nodejs", "pairs", "part_files", "planner", "receipts", "survey", "verify"),
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
