"""Who may import whom: a room imports from itself and from the rooms above it in the list, never from below."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import blobsync
from tests.source import ROOT, Module, modules

# Each room's own docstring says what it decides. The last are the command line and the package itself.
ROOMS = (
    *("base", "config", "local", "store", "plan", "transfer"),
    *("direct", "spread", "emulator", "azcopy"),
    *("code", "keep", "ancestors"),
    *("jobspec", "node", "backends", "jobs", "tunnels"),
    *("project", "web", "cli"),
)

# Rooms that decide, or carry out through what they are handed: they never reach for a connection themselves.
HANDED_ITS_STORES = ("plan", "transfer", "direct")
CONNECTING = ("store.connect", "store.rest", "store.sdk", "store.azure_identity")
# Of the module that makes SAS, they may have the rights and lifetimes.
MINTING = {"mint_sas", "sas_minter", "sas_url"}

# Third-party packages, and standard modules that have one home.
GATES: dict[str, tuple[str, ...]] = {
    "anycrc": ("store.checksums",),
    **dict.fromkeys(("boto3", "botocore"), ("store.s3",)),
    "azure": ("store.azure_identity", "store.sdk", "backends"),
    "pathspec": ("local.ignore_patterns",),
    "sqlite3": (
        *("local.database", "local.index", "local.migration", "local.resume_records", "local.running_records"),
        "jobs.history",
    ),
    # What travels to compute nodes alone cannot import anything of ours.
    "subprocess": ("base.process", "node.standalone.old_python", "node.standalone.tensorboard_jupyter"),
    "tqdm": ("cli", "project.progress_listeners"),
    "typer": ("cli",),
    "watchfiles": ("keep.watcher",),
    **dict.fromkeys(("jinja2", "starlette", "uvicorn"), ("web",)),
    "urllib.request": ("node.standalone.bootstrap",),
    "urllib3": ("azcopy", "backends", "store.rest"),
    "pycurl": ("store.rest",),
    "yaml": ("config", "backends"),
}

MODULES = modules()


def _short(name: str) -> str:
    return name.removeprefix("blobsync").removeprefix(".")


def _room(name: str) -> int | None:
    first = _short(name).partition(".")[0]
    return ROOMS.index(first) if first in ROOMS else None


def _is_in(name: str, homes: tuple[str, ...]) -> bool:
    short = _short(name)
    return any(short == home or short.startswith(home + ".") for home in homes)


IN_ROOMS = [module for module in MODULES if module.name not in ("blobsync", "blobsync.__main__")]


def test_modules_import_from_their_room_or_above() -> None:
    below = []
    for module in IN_ROOMS:
        room = _room(module.name)
        assert room is not None, f"{module.file} stands in no room; add the room to ROOMS"
        for line, name in module.imports():
            assert not name.startswith("."), f"{module.file}:{line}: imports are absolute"
            if name.startswith("blobsync.") and name != "blobsync.__version__":
                target = _room(name)
                if target is None or target > room:
                    below.append(f"{module.file}:{line} imports {name} from below {ROOMS[room]}")
    assert below == []


def test_what_decides_is_handed_its_stores() -> None:
    wrong = []
    for module in [each for each in IN_ROOMS if _is_in(each.name, HANDED_ITS_STORES)]:
        wrong += [f"{module.file}:{line} imports {name}" for line, name in module.imports() if _is_in(name, CONNECTING)]
        imports = (node for node in module.nodes if isinstance(node, ast.ImportFrom))
        wrong += [f"{module.file} imports {one.name}" for node in imports for one in node.names if one.name in MINTING]
    assert wrong == []


def test_no_two_modules_import_each_other() -> None:
    names = {module.name for module in MODULES}
    imports = {
        module.name: {
            found
            for _, name in module.imports()
            for found in (name, name.rpartition(".")[0])
            if found in names and found != module.name and not module.name.startswith(f"{found}.")
        }
        for module in MODULES
    }
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, f"a circle: {' -> '.join((*way[way.index(name) :], name))}"
        if name not in done:
            for other in sorted(imports[name]):
                visit(other, (*way, name))
            done.add(name)

    for name in sorted(imports):
        visit(name, ())


def test_the_top_level_is_a_list_of_rooms() -> None:
    top = {path.name for path in (ROOT / "blobsync").iterdir() if path.name != "__pycache__"}
    assert top == {*ROOMS, "__init__.py", "__main__.py", "py.typed"}
    assert len(top) <= 24


def test_modules_import_only_what_has_its_home_there() -> None:
    wrong = [
        f"{module.file}:{line} imports {name}"
        for module in MODULES
        for line, name in module.imports()
        for package, homes in GATES.items()
        if (name == package or name.startswith(package + ".")) and not _is_in(module.name, homes)
    ]
    assert not wrong


def test_nothing_imports_the_sdk_before_it_is_needed() -> None:
    # It takes longer than most commands; inside a function it is imported by the few that ask it for something.
    early = [
        f"{module.file}:{node.lineno}"
        for module in MODULES
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "blobsync.store.sdk"
    ]
    inside = [module for module in MODULES for _, name in module.imports() if name.startswith("blobsync.store.sdk")]
    assert not early and inside


def _loaded_for_a_short_upload(then: str) -> set[str]:
    modules = (
        *("cli.transfer", "project.api", "plan.planner", "project.transfer_history", "transfer.carry_out"),
        *("store.connect", "store.rest.curl", "direct.engine"),
    )
    program = f"import sys, {', '.join(f'blobsync.{name}' for name in modules)}\n{then}"
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_a_short_upload_imports_only_what_it_needs() -> None:
    # Three quarters of a short command's time are imports.
    loaded = _loaded_for_a_short_upload("print(*sys.modules)")
    late = {
        "ssl",
        "anycrc",
        "email.utils",
        "http.client",
        "blobsync.config.checkpoint_rule",
        "blobsync.config.sources",
        "blobsync.local.fetch_records",
        "blobsync.local.trash",
        "blobsync.local.tree",
        "blobsync.plan.request_counts",
        "blobsync.plan.spreading",
        "blobsync.direct.copy",
        "blobsync.direct.download",
        "blobsync.direct.small_files",
        "blobsync.store.old_contents",
        "blobsync.store.resumed_reader",
        "blobsync.store.rest.arrow",
        "blobsync.store.checksums",
    }
    assert "blobsync.direct.upload" in loaded and not late & loaded


def test_a_listing_imports_no_comparison() -> None:
    program = "import sys, blobsync.project.api, blobsync.project.browse; print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.split())
    assert "blobsync.project.browse" in loaded
    assert not {"blobsync.plan.survey", "blobsync.plan.pairing", "blobsync.transfer"} & loaded


def test_a_short_upload_makes_few_dataclasses() -> None:
    """The methods of each are compiled anew at every start: a frozen one takes five times as long as a named tuple."""
    made = _loaded_for_a_short_upload(
        "found = {value for module in list(sys.modules.values()) if module.__name__.startswith('blobsync.')"
        " for value in vars(module).values() if isinstance(value, type) and '__dataclass_fields__' in vars(value)}\n"
        "print(*(f'{each.__module__}.{each.__qualname__}' for each in found))"
    )
    exported = {name for name in made if name.rpartition(".")[2] in dir(blobsync)}
    assert "blobsync.plan.transfer_plan.TransferPlan" in exported
    assert {name.rpartition(".")[2] for name in made - exported} <= {
        # Equal to others of their own type only.
        *("LocalLocation", "MountedLocation"),
        # Changed copies, defaults that are made anew, JSON of the fields, a type variable, or values that tests give.
        *(
            "Running",
            "Session",
            "ProjectContext",
            "Result",
            "Ledger",
            "UnfinishedDownload",
            "CollectedReport",
        ),
    }


def test_backends_do_not_import_each_other() -> None:
    families = ("aml", "kubernetes", "local", "slurm")

    def family(name: str) -> str:
        found = name.removeprefix("blobsync.backends.").partition(".")[0]
        return found if name.startswith("blobsync.backends.") and found in families else ""

    seen = {family(module.name) for module in MODULES}
    wrong = [
        f"{module.file}:{line} imports {name}"
        for module in MODULES
        for line, name in module.imports()
        if family(module.name) and family(name) not in ("", family(module.name))
    ]
    assert seen == {"", *families} and not wrong


def test_the_gates_and_rooms_see_a_wrong_import() -> None:
    assert _room("blobsync.nowhere") is None
    assert (_room("blobsync.cli.main") or 0) > (_room("blobsync.plan.decisions") or 0)
    assert _is_in("blobsync.jobs.history", GATES["sqlite3"])
    assert not _is_in("blobsync.local.indexes", GATES["sqlite3"])


# Only the gate may say that a name is safe; `grep -rn RelativeName blobsync` shows every place that relies on it.
_GATE = "blobsync.local.names"
_SAFE = {"RelativeName", "SafeName"}


def _calls(module: Module) -> Iterator[tuple[int, str, ast.Call]]:
    for node in module.nodes:
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
    **dict.fromkeys(("local.files", "local.part_files", "local.trash"), "what comes from outside: downloads and logs"),
    "base.user_folders": "what the user agreed to and logs in with, in the user's own configuration",
    **dict.fromkeys(("azcopy", "transfer.ledger", "local.state_dir"), "our own records and staging folders"),
    "local.state_dir": "the seal of the state folder",
    "local.private_folders": "who may use the state folder; what a container wrote",
    "local.resume_records": "what a process is about to write",
    "local.migration": "what an earlier version kept, which is taken over",
    **dict.fromkeys(("local.sorted_runs", "plan.saved_plan"), "plans that memory does not hold"),
    **dict.fromkeys(("plan.saved_plan", "base.daily_warnings"), "the same"),
    **dict.fromkeys(
        ("code", "config.scaffold", "cli.demo", "cli.demo", "jobs.form.templates"),
        "what the user asked to be made",
    ),
    "keep.watcher": "a probe, to find out whether the system tells of changes",
    "local.mark_complete": "what a program says about a set of its files",
    "project.keeper_records": "the lock under which keepers look for each other, and their logs",
    "web.gate": "the file that logs the browser in",
    "web.server": "the socket that is listened on",
    "emulator": "programs in the user's data folder",
    "jobs.foreground": "jobs on this machine",
    "backends.local": "the same",
    **dict.fromkeys(("node", "backends.aml.node_start"), "files on a node"),
    "tunnels.named": "the user's own tunnels, in the user's configuration and state",
    "jobspec.node_archive": "what nodes start from, in the user's state folder",
    **dict.fromkeys(
        ("base.process", "base.stopping", "cli.output", "spread.worker_process", "spread.task"),
        "the streams of programs",
    ),
    **dict.fromkeys(("spread.shared_store", "spread.claim", "spread.probe"), "what the nodes of a transfer share"),
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


def test_only_rooms_for_files_write_and_delete_files() -> None:
    wrong = [
        f"{module.file}:{line}: {name}"
        for module in MODULES
        if not _is_in(module.name, tuple(WRITERS))
        for line, name, call in _calls(module)
        if _writes(name, call)
    ]
    assert wrong == [], "give the work to a module of WRITERS"


def test_every_writer_is_a_module_that_writes() -> None:
    writing = {
        home for home in WRITERS for module in MODULES
        if _is_in(module.name, (home,)) and any(_writes(name, call) for _, name, call in _calls(module))
    }  # fmt: skip
    assert writing == set(WRITERS)
