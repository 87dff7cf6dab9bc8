"""What starting costs: the modules that each command imports. The benchmark measures the time itself."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from blobsync.jobs.history import History
from blobsync.local.state_dir import open_state_dir

PROJECT = {
    "aux_data/aml/aml.yaml": (
        "config_param:\n  data_folder: {azure_blob_config_file: aux_data/configs/a.yaml, path: p}\n"
    ),
    "aux_data/configs/a.yaml": "account_name: acct\ncontainer_name: cont\n",
}
AT_A_CALL = Path(__file__).parent.parent / "at_a_call.py"
HEAVY = ("azure", "rich", "pydantic", "requests", "aiohttp", "cryptography", "urllib3", "sqlite3", "pathspec")
SHOW_MODULES = """
import os, sys
from blobsync.cli.main import main
code = main(sys.argv[1:])
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr, flush=True)
# As the program itself ends: Python would wait for threads that wait for a server.
os._exit(code)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "also_absent"),
    [
        (("--help",), 0, ("yaml",)),
        (("--version",), 0, ("yaml",)),
        (("u", "--help"), 0, ("yaml",)),
        (("resolve", "data/x"), 0, ()),
        (("resolve", "elsewhere"), 2, ()),
        (("ls", "-c", "nix"), 2, ()),
        (("config", "check"), 0, ()),
        (("nonsense",), 2, ("yaml",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_light_commands_import_nothing_heavy(
    project: Path, words: tuple[str, ...], code: int, also_absent: tuple[str, ...]
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SHOW_MODULES, *words], cwd=project, capture_output=True, text=True, check=False
    )
    loaded = set(ended.stderr.splitlines()[-1].split())
    assert ended.returncode == code, ended.stderr
    assert "blobsync" in loaded
    found = loaded.intersection((*HEAVY, *also_absent))
    # They come with what transfers and submit need; these commands transfer and submit nothing.
    with_the_rest = {"ls": {"sqlite3", "urllib3"}, "config": {"pathspec", "sqlite3", "urllib3"}}
    assert not found - with_the_rest.get(words[0], set())


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (("--help",), ("blobsync.plan.transfer_plan", "blobsync.project", "blobsync.jobs")),
        (("u", "--help"), ("blobsync.plan.transfer_plan", "blobsync.cli.reports", "blobsync.store", "json")),
        (("ls",), ("blobsync.plan.planner", "blobsync.project.transfer_history", "blobsync.transfer")),
        (
            ("status",),
            (
                *("blobsync.jobs", "blobsync.jobspec", "blobsync.backends", "blobsync.transfer.ledger"),
                *("blobsync.local.lock_files", "blobsync.plan.planner"),
            ),
        ),
        (
            ("q",),
            (
                *("blobsync.project.api", "blobsync.plan.transfer_plan", "blobsync.jobs.submit"),
                *("blobsync.jobs.shared_records", "blobsync.local.files", "blobsync.spread", "zipfile"),
                *("blobsync.store.connect", "xml.etree.ElementTree"),
            ),
        ),
    ],
)
def test_commands_load_only_the_rooms_that_they_enter(
    project: Path, words: tuple[str, ...], absent: tuple[str, ...]
) -> None:
    # As after a transfer: a file for jobs, and none in it.
    History(open_state_dir(project, {"HOME": str(project)}).jobs_file).page()
    code = SHOW_MODULES.replace('name.partition(".")[0] for name', "name for name")
    ended = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=project,
        env={**os.environ, "HOME": str(project)},
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = set(ended.stderr.splitlines()[-1].split())
    assert ended.returncode == 0 and "blobsync.cli.main" in loaded, ended.stderr
    assert not loaded.intersection(absent)


# One after the other, 21 programs start.
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("words", "first", "last"),
    [
        # Before it has read the command line, blobsync does not know of --json: then the sentence is on standard error.
        # It knows after some 8,000 calls.
        pytest.param(("ls", "--json"), 20_000, None, id="ls --json"),
        pytest.param(("q",), 2, 20_000, id="the first calls of q"),
        pytest.param(("config", "check"), 2, None, id="config check", marks=pytest.mark.soak),
        pytest.param(("q",), 2, None, id="q", marks=pytest.mark.soak),
    ],
)
def test_ctrl_c_is_an_interrupt_at_any_moment(
    project: Path, words: tuple[str, ...], first: int, last: int | None
) -> None:
    """While modules load, and classes are made, as well; call 1 is that of ``main``. ``last``: else nine tenths."""

    def run(at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(AT_A_CALL), "SIGINT", str(at), "-", *words],
            cwd=project,
            env={**os.environ, "HOME": str(project)},
            capture_output=True,
            text=True,
            check=False,
        )

    last = last or int(run(0).stderr.split()[-1]) * 9 // 10
    seed = random.randrange(1 << 31)
    for at in sorted(random.Random(seed).sample(range(first, last), 20)):
        ended = run(at)
        where = f"call {at:,} of {last:,}, seed {seed}: {ended.stdout}{ended.stderr}"
        assert ended.returncode == 130, where
        if "--json" in words:
            assert json.loads(ended.stdout)["status"] == "cancelled", where
        else:
            assert "blobsync: interrupted" in ended.stderr and "Traceback" not in ended.stderr, where


_ENDING = """
import atexit, os, sys, threading, time
# Written when Python frees it.
last = os.fdopen(os.dup(1), "w")
last.write("Python's own end")
atexit.register(print, "what was registered")
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
from blobsync.__main__ import main
sys.exit(main())
"""


_DROPPED = """
import sys, threading, time
from blobsync.base.stopping import enable_ctrl_c

class Dropped:
    def __del__(self):
        raise KeyboardInterrupt

def busy(frame, event, arg):
    # The thread that is to press Ctrl-C again runs, and the one that starts it waits for a core.
    if event == "call" and frame.f_code.co_filename == threading.__file__ and frame.f_code.co_name == "wait":
        time.sleep(0.2)

enable_ctrl_c()
try:
    sys.setprofile(busy)
    Dropped()
    sys.setprofile(None)
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_that_python_drops_comes_again_on_a_busy_machine() -> None:
    ended = subprocess.run([sys.executable, "-c", _DROPPED], capture_output=True, text=True, check=False)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")


def test_a_completion_ends_as_other_commands_do(project: Path) -> None:
    """Not with Python's own end, which takes all modules apart first."""
    ended = subprocess.run(
        [sys.executable, "-c", "from blobsync.cli.main import main; print('ended with', main([]))"],
        cwd=project,
        env={**os.environ, "_BLOBSYNC_COMPLETE": "complete_bash", "COMP_WORDS": "blobsync un", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == "undo\nended with 0\n", ended


def test_a_failed_command_does_not_take_down_python_beside_threads_that_wait_for_a_server() -> None:
    argv = [sys.executable, "-c", _ENDING, "no-such-command"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "no such command" in done.stderr, done
    assert done.stdout == "what was registered\n", done
