"""The bootstrap of a compute node: what it fetches, refuses and leaves behind."""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.jobspec.node_archive import node_archive
from blobsync.jobspec.spec import CodeRef, FolderLink, JobSpec
from blobsync.local.names import local_problem
from blobsync.node.standalone import bootstrap, interactive, old_python
from tests.fakes.blob_service import BlobService, serve
from tests.fakes.bootstrap import ARCHIVE, SOURCES, BootedNode, python_of
from tests.fakes.jobs import CODE, make_spec, zip_of
from tests.servers.recording_server import RecordingServer
from tests.waiting import wait_until

LINES = 162
SENTINEL = "SENTINEL"
LINK = 0o120777


@pytest.fixture
def service() -> Iterator[BlobService]:
    with serve() as service:
        yield service


@pytest.fixture
def node(tmp_path: Path, service: BlobService) -> BootedNode:
    return BootedNode(tmp_path, service)


@pytest.fixture
def old(node: BootedNode, tmp_path: Path) -> BootedNode:
    """The same with Python 3.8 as the only one."""
    python = python_of("3.8")
    if python is None:
        pytest.skip("this machine has no Python 3.8")
    (tmp_path / "bin").mkdir()
    for name in ("sh", "bash", "cat", "env", "printenv", "sleep", "echo"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    node.python = python
    node.env.update(PATH=str(tmp_path / "bin"), HOME=str(tmp_path / "home"), CONDA_PREFIX=str(tmp_path / "conda"))
    node.env.update(CONDA_PYTHON_EXE="")
    return node


def job(node: BootedNode, *argv: str, **changes: object) -> JobSpec:
    body, digest = zip_of({"a.txt": "of the code\n"})
    node.service.put(CODE, body)
    code = CodeRef(node.service.url, CODE, digest)
    archive = changes.pop("node_archive", None) or node.archive()
    return make_spec(*argv, code=code, node_archive=archive, **changes)


# -- the files of a job --------------------------------------------------------------------------------------


def test_a_process_that_fetches_nothing_imports_no_http_client() -> None:
    look = "import runpy, sys; runpy.run_path(sys.argv[1]); print('http.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", look, bootstrap.__file__], capture_output=True, text=True)
    assert done.stdout == "False\n", done


def test_the_bootstrap_stays_small() -> None:
    assert Path(bootstrap.__file__).read_text().count("\n") <= LINES


@pytest.mark.parametrize("module", [bootstrap, old_python, interactive], ids=["bootstrap", "old_python", "interactive"])
def test_what_travels_alone_is_python_3_8_with_its_own_library(module: object) -> None:
    text = Path(str(getattr(module, "__file__", ""))).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    imported = {alias.name for found in ast.walk(tree) if isinstance(found, ast.Import) for alias in found.names}
    imported |= {found.module or "" for found in ast.walk(tree) if isinstance(found, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
    python = python_of("3.8")
    if python is None:
        pytest.skip("no Python 3.8 that could import it")
    load = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='loaded')"
    subprocess.run([python, "-I", "-W", "error", "-c", load, str(getattr(module, "__file__", ""))], check=True)


# -- becoming blobsync ---------------------------------------------------------------------------------------


def test_the_words_arrive_as_they_were_given_and_the_exit_code_comes_back(node: BootedNode) -> None:
    spec = job(node)
    done = node.do("exec", spec, "--keep-root", "failed", "--log")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr, told["isolated"]) == (5, "", 1)
    assert told["argv"] == node.command("exec", spec, "--keep-root", "failed", "--log")[3:]
    assert told["place"] == str(node.place(spec) / "node")
    assert node.place(spec).stat().st_mode & 0o777 == node.place(spec).parent.stat().st_mode & 0o777 == 0o700


def test_requests_to_this_machine_bypass_the_proxy(node: BootedNode) -> None:
    with RecordingServer() as proxy:
        node.env.update(dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy.url))
        done = node.do("exec", job(node))
    assert (done.returncode, done.stderr) == (5, "")
    assert proxy.requests == []


def test_each_task_of_an_array_and_each_node_has_a_place_of_its_own(node: BootedNode) -> None:
    spec = job(node)
    node.env.update(SLURM_ARRAY_TASK_ID="3", SLURMD_NODENAME="gpu7.cluster")
    told = json.loads(node.do("exec", spec).stdout)
    assert told["place"] == str(node.scratch / f"{spec.run_id}task_3" / "gpu7.cluster.boot" / "node")


def test_a_task_takes_what_another_one_on_its_node_has(node: BootedNode) -> None:
    spec = job(node)
    node.env.update(SLURM_ARRAY_TASK_ID="3")
    first = Path(json.loads(node.do("prepare", spec).stdout)["place"])
    assert list(first.rglob("*.pyc"))
    del node.service.blobs[ARCHIVE]
    node.env.update(SLURM_ARRAY_TASK_ID="4")
    done = node.do("prepare", spec)
    second = Path(json.loads(done.stdout)["place"])
    assert (done.returncode, second) == (5, node.scratch / f"{spec.run_id}task_4" / "node.boot" / "node")
    compiled = next(second.rglob("__init__*.pyc"))
    # As it was: what is compiled belongs to a file of that time.
    assert compiled.stat().st_mtime_ns == next(first.rglob(compiled.name)).stat().st_mtime_ns
    # Where others may write, or where it is not what the job was submitted with, nothing is taken.
    shutil.rmtree(second.parent.parent)
    first.parent.chmod(0o777)
    assert "404" in node.do("prepare", spec).stderr
    first.parent.chmod(0o700)
    (first.parent / "node.zip").write_bytes(b"another")
    assert "404" in node.do("prepare", spec).stderr
    node.archive()
    (first / "__main__.py").write_text("evil")
    done = node.do("prepare", spec)
    assert done.returncode == 5 and "evil" not in (second / "__main__.py").read_text()


def test_another_archive_than_the_jobs_is_refused_before_anything_is_unpacked(node: BootedNode) -> None:
    spec = job(node)
    body = node.service.blobs[ARCHIVE]
    node.service.put(ARCHIVE, body[:-30] + bytes(30))
    done = node.do("exec", spec)
    assert done.returncode == 72 and "its SHA-256 differs" in done.stderr and done.stdout == ""
    assert {path.name for path in node.place(spec).iterdir()} == {"lock", "node.zip"}


def test_a_larger_archive_than_the_jobs_is_not_read_to_its_end(node: BootedNode) -> None:
    spec = job(node)
    node.service.put(ARCHIVE, bytes(80 << 20))
    done = node.do("exec", spec)
    assert done.returncode == 72 and "more than" in done.stderr
    assert not (node.place(spec) / "node.zip").exists() or (node.place(spec) / "node.zip").stat().st_size < 4 << 20


def test_a_failed_preparation_leaves_nothing(node: BootedNode) -> None:
    spec = job(node)
    del node.service.blobs[ARCHIVE]
    done = node.do("prepare", spec)
    assert (done.returncode, done.stderr.count("\n")) == (72, 1)
    assert "this node could not be made ready: cannot read" in done.stderr and "404" in done.stderr
    assert list(node.scratch.iterdir()) == []


def test_an_archive_that_is_there_already_is_not_fetched_again(node: BootedNode) -> None:
    spec = job(node)
    node.do("prepare", spec)
    fetched = len(node.service.requests)
    assert fetched == 1
    assert node.do("exec", spec).returncode == 5
    assert len(node.service.requests) == fetched


@pytest.mark.parametrize("damage", ["changed", "missing", "another"])
def test_what_is_there_is_checked_too(node: BootedNode, damage: str) -> None:
    spec = job(node)
    node.do("prepare", spec)
    place = node.place(spec) / "node"
    entry = place / "blobsync/node/__main__.py"
    if damage == "changed":
        entry.write_text(entry.read_text().replace("return 5", "return 6"))
    elif damage == "missing":
        entry.unlink()
    else:
        (place / "json.py").write_text("raise SystemExit(6)\n")
    assert node.do("exec", spec).returncode == 5
    assert not (place / "json.py").exists()


def test_two_processes_of_a_node_unpack_once(node: BootedNode) -> None:
    sources = {**SOURCES, **{f"blobsync/more_{number}.py": bytes(20_000) for number in range(100)}}
    spec = job(node, node_archive=node.archive(sources))
    node.service.pause = 0.5
    command = node.command("exec", spec)
    started = [subprocess.Popen(command, env=node.environ(), stdout=subprocess.PIPE) for _ in range(4)]
    assert [process.wait(60) for process in started] == [5] * 4
    for process in started:
        assert process.stdout
        process.stdout.close()
    assert len(node.service.requests) == 1


# Runs the bootstrap, and dies when it begins to write this file.
_KILLED_WHILE_UNPACKING = """
import os, runpy, signal, sys

def kill(event, args):
    if event == "open" and str(args[0]).endswith("more_400.py"):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def _until_it_fetches(node: BootedNode, spec: JobSpec) -> None:
    assert wait_until((node.place(spec) / "node.zip").exists, seconds=60)


@pytest.mark.parametrize("moment", ["fetching", "unpacking"])
def test_a_kill_in_the_middle_is_made_good_by_the_next_process(node: BootedNode, moment: str) -> None:
    sources = {**SOURCES, **{f"blobsync/more_{number}.py": bytes(5000) for number in range(800)}}
    spec = job(node, node_archive=node.archive(sources))
    place, command = node.place(spec), node.command("exec", spec)
    if moment == "fetching":
        node.service.gate.clear()
    else:
        command[2:2] = ["-c", _KILLED_WHILE_UNPACKING]
    with subprocess.Popen(command, env=node.environ(), stdout=subprocess.PIPE) as process:
        if moment == "fetching":
            _until_it_fetches(node, spec)
            process.kill()
        assert process.stdout and process.stdout.read() == b""
    assert process.returncode == -signal.SIGKILL
    written = sum(1 for path in place.rglob("*.py"))
    assert written == 0 if moment == "fetching" else 0 < written < len(sources)
    node.service.gate.set()
    assert node.do("exec", spec).returncode == 5
    assert sum(1 for path in (place / "node").rglob("*.py")) == len({*sources, "__main__.py"})


def test_a_job_that_is_queued_again_finds_the_node_as_a_kill_left_it(node: BootedNode) -> None:
    spec = job(node)
    assert node.do("exec", spec).returncode == 5
    (node.place(spec) / "node.zip").write_bytes(b"half")
    node.env["SLURM_RESTART_COUNT"] = "1"
    assert node.do("prepare", spec).returncode == 5
    assert len(node.service.requests) == 2


@pytest.mark.parametrize("way", ["writable", "link"])
def test_somebody_elses_folder_in_the_way_is_refused(node: BootedNode, way: str, tmp_path: Path) -> None:
    spec = job(node)
    node.scratch.mkdir()
    if way == "writable":
        node.place(spec).parent.mkdir()
        node.place(spec).parent.chmod(0o777)
    else:
        (tmp_path / "theirs").mkdir(0o700)
        node.place(spec).parent.symlink_to(tmp_path / "theirs")
    done = node.do("exec", spec)
    assert done.returncode == 72 and "others may write to" in done.stderr and "runtime: {scratch: DIR}" in done.stderr
    assert node.service.requests == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder that belongs to somebody else")
def test_a_folder_of_another_user_is_refused(node: BootedNode) -> None:
    spec = job(node)
    node.place(spec).parent.mkdir(parents=True, mode=0o700)
    os.chown(node.place(spec).parent, 12345, 12345)
    done = node.do("exec", spec)
    assert done.returncode == 72 and f"others may write to {node.place(spec).parent}" in done.stderr


def test_a_folder_in_tmp_that_somebody_else_made_first_is_not_used(node: BootedNode, tmp_path: Path) -> None:
    spec = job(node)
    (tmp_path / "tmp" / f"blobsync-{os.getuid()}").mkdir(parents=True)
    (tmp_path / "tmp" / f"blobsync-{os.getuid()}").chmod(0o777)
    node.env.update(BLOBSYNC_SCRATCH="", TMPDIR=str(tmp_path / "tmp"), HOME=str(tmp_path / "home"))
    told = json.loads(node.do("exec", spec).stdout)
    assert told["place"].startswith(f"{tmp_path}/home/.local/state/blobsync/scratch/{spec.run_id}/")


def test_no_part_of_a_sas_is_printed_or_passed_on(node: BootedNode) -> None:
    node.sas = "sv=2021-12-02&sp=rl&sig=ab%2Bcd/SENTINEL%3D"
    node.secret_env = {"MY_TOKEN": "hush hush"}
    spec = job(node, secret_env=("MY_TOKEN",))
    wrong = replace(spec, node_archive=replace(node.archive(), container="http://127.0.0.1:1/hush hush/SENTINEL"))
    boot = bootstrap.Boot(node.command("exec", spec)[3:])
    said = boot.hide(f"{node.sas} ab+cd/SENTINEL= ab%2Bcd%2FSENTINEL%3D hush hush hush%20hush")
    assert said == "*** *** *** *** ***"
    done = node.do("exec", wrong)
    assert done.returncode == 72 and "hush" not in done.stdout + done.stderr
    with subprocess.Popen(node.command("exec", spec), env=node.environ(), stdout=subprocess.PIPE) as process:
        seen = Path(f"/proc/{process.pid}/cmdline").read_bytes() + Path(f"/proc/{process.pid}/environ").read_bytes()
        assert process.stdout
        assert SENTINEL.encode() not in seen + process.stdout.read()


def test_a_service_that_is_busy_and_an_answer_that_breaks_off_are_tried_again(node: BootedNode) -> None:
    spec = job(node)
    node.service.refuse, node.service.cut = 1, 1
    assert node.do("exec", spec).returncode == 5


def test_a_refusal_is_not_tried_again(node: BootedNode) -> None:
    node.sas = "sv=2021-12-02&sig="
    spec = job(node)
    del node.service.blobs[ARCHIVE]
    assert node.do("exec", spec).returncode == 72
    assert len(node.service.requests) == 1


def test_a_file_that_the_service_put_here_is_taken_and_checked(node: BootedNode, tmp_path: Path) -> None:
    spec, file = job(node), tmp_path / "input" / "node.zip"
    file.parent.mkdir()
    file.write_bytes(node.service.blobs[ARCHIVE])
    assert spec.node_archive
    here = replace(spec, node_archive=replace(spec.node_archive, container=f"mounted:{file}"))
    assert node.do("exec", here).returncode == 5
    assert node.service.requests == []
    file.write_bytes(b"another")
    other = replace(here, run_id="me_2_0badcafe")
    assert "its SHA-256 differs" in node.do("exec", other).stderr


def test_a_warning_that_comes_before_the_program_is_there_is_kept_for_it(node: BootedNode, tmp_path: Path) -> None:
    made = node_archive({**os.environ, "XDG_STATE_HOME": str(tmp_path)})
    spec = job(node, "trap 'echo heard; exit 3' USR1; while :; do sleep 0.05; done")
    assert spec.code
    spec = replace(spec, node_archive=made.beside(spec.code))
    assert spec.node_archive
    node.service.put(spec.node_archive.path, made.body)
    node.service.gate.clear()
    with subprocess.Popen(node.command("exec", spec), env=node.environ(), stdout=subprocess.PIPE) as process:
        _until_it_fetches(node, spec)
        process.send_signal(signal.SIGUSR1)
        node.service.gate.set()
        assert process.stdout and process.stdout.read() == b"heard\n"
        assert process.wait(60) == 3


def test_a_request_to_stop_ends_a_preparation_and_leaves_nothing(node: BootedNode) -> None:
    spec = job(node)
    node.service.put(ARCHIVE, bytes(50 << 20))
    node.service.gate.clear()
    assert spec.node_archive
    spec = replace(spec, node_archive=replace(spec.node_archive, size=50 << 20))
    with subprocess.Popen(node.command("prepare", spec), env=node.environ(), stderr=subprocess.PIPE) as process:
        _until_it_fetches(node, spec)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert list(node.scratch.iterdir()) == []


# -- with only an older Python -------------------------------------------------------------------------------


def test_a_newer_python_on_the_path_is_found(old: BootedNode, tmp_path: Path) -> None:
    (tmp_path / "bin" / "python3.11").symlink_to(sys.executable)
    # The shim of a version manager, which exists whether or not it has that version.
    (tmp_path / "bin" / "python3.14").write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
    (tmp_path / "bin" / "python3.14").chmod(0o755)
    done = old.do("exec", job(old))
    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout)["isolated"] == 1


def test_a_newer_python_of_conda_is_found(old: BootedNode, tmp_path: Path) -> None:
    (tmp_path / "conda/envs/train/bin").mkdir(parents=True)
    (tmp_path / "conda/envs/train/bin/python").symlink_to(sys.executable)
    assert old.do("exec", job(old)).returncode == 5


@pytest.mark.parametrize("verb", ["prepare", "exec"])
@pytest.mark.parametrize("mode", ["download", "upload"])
def test_folders_that_need_blobsync_are_refused_before_the_program_starts(
    old: BootedNode, mode: str, verb: str
) -> None:
    folder = FolderLink("data", old.service.url, "mine/data", mode)
    done = old.do(verb, job(old, "echo", "never", folders=(folder,)))
    assert (done.returncode, done.stdout) == (72, "")
    assert f"folder data has mode {mode}, for which a node needs Python 3.10 or newer" in done.stderr
    assert f"{old.python} (3.8)" in done.stderr and "runtime: {python: PATH}" in done.stderr
    assert old.service.requests == []


def test_a_simple_job_runs_from_its_preparation_to_its_end(old: BootedNode, tmp_path: Path) -> None:
    data = tmp_path / "shared"
    folder = FolderLink("data", old.service.url, "mine/data", "link", source=str(data))
    awkward = ["two words", "$HOME", ";"]
    names = "RANK WORLD_SIZE MASTER_ADDR GREETING HWLOC_COMPONENTS MY_TOKEN PLACE"
    program = f'cat a.txt data/b.txt; printenv {names}; echo "$@"; exit 7'
    spec = job(
        old, "sh", "-c", program, "sh", *awkward, folders=(folder,), setup=("echo set > data/b.txt",),
        env={"GREETING": "a,b c"}, secret_env=("MY_TOKEN",), options={"variables": {"PLACE": "node $NODE_RANK"}},
    )  # fmt: skip
    old.secret_env = {"MY_TOKEN": "hush"}
    assert old.do("prepare", spec).returncode == 0
    done = old.do("exec", spec)
    assert done.returncode == 7, done.stderr
    values = ["0", "1", "127.0.0.1", "a,b c", "-gl", "hush", "node 0"]
    assert done.stdout.splitlines() == ["of the code", "set", *values, " ".join(awkward)]
    assert "logs are not copied" in (old.run / "system_logs" / "node.txt").read_text()
    assert old.do("finish", spec, "--code", "7").returncode == 0
    assert list(old.scratch.iterdir()) == [] and (data / "b.txt").read_text() == "set\n"


def test_an_old_python_takes_no_variable_that_the_job_does_not_ask_for(old: BootedNode, tmp_path: Path) -> None:
    spec = job(old, "printenv MY_TOKEN BASH_ENV; true", setup=("true",), secret_env=("MY_TOKEN",))
    old.secret_env = {"MY_TOKEN": "hush", "BASH_ENV": f"$(touch {tmp_path}/taken)"}
    done = old.do("exec", spec)
    assert (done.returncode, done.stdout) == (0, "hush\n"), done.stderr
    assert not (tmp_path / "taken").exists()


def test_an_old_python_sets_up_in_the_folder_of_the_command_which_has_to_be_there(old: BootedNode) -> None:
    options = {"work_dir": "sub"}
    spec = job(
        old,
        "sh",
        "-c",
        "cat b.txt; echo $SLURM_OVERLAP",
        setup=(f"{shutil.which('mkdir')} sub", "pwd > b.txt"),
        options=options,
    )
    old.env["SLURM_OVERLAP"] = "1"
    done = old.do("exec", spec)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("/sub") and done.stdout.splitlines()[1] == "", done.stderr
    missing = replace(spec, run_id="me_2_0badcafe", options={"work_dir": "sbu"}, setup=())
    done = old.do("exec", missing)
    assert (done.returncode, done.stdout) == (72, "")
    assert "there is no folder sbu, the cluster file's work_dir" in done.stderr


def test_an_old_python_prepares_once_and_opens_the_log_where_it_is_told_to(old: BootedNode) -> None:
    spec = job(old, "echo", "to the log", setup=("echo again",))
    done = old.do("exec", spec, "--log")
    assert (done.returncode, done.stdout) == (0, "again\n")
    assert old.do("exec", spec, "--log").stdout == ""
    assert (old.run / "user_logs" / "std_log.txt").read_text() == "to the log\n" * 2
    assert old.do("exec", replace(spec, argv=("no-such-program",))).returncode == 127


def test_a_mount_gets_its_sas_in_the_environment_and_is_said_to_be_missing_where_it_is(
    old: BootedNode, tmp_path: Path
) -> None:
    folder = FolderLink(
        "data", old.service.url, "mine/data", "ro_mount", cache_seconds=7, fuse_options=("-o 'a b'", "--x")
    )
    spec = job(old, "true", folders=(folder,))
    done = old.do("prepare", spec)
    assert done.returncode == 72 and "has mode ro_mount, and this node has no blobfuse2" in done.stderr
    program = tmp_path / "bin" / "blobfuse2"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\nprintenv AZURE_STORAGE_SAS_TOKEN > {tmp_path}/sas\n')
    program.chmod(0o755)
    assert old.do("prepare", spec).returncode == 0
    words = (tmp_path / "words").read_text()
    assert "--read-only=true" in words and "--subdirectory=mine/data" in words and "--file-cache-timeout=7" in words
    assert words.endswith("-o a b --x\n")
    assert SENTINEL not in words and SENTINEL in (tmp_path / "sas").read_text()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"../out.txt": "x"}, "would lead outside"),
        ({"/etc/out.txt": "x"}, "would lead outside"),
        ({"out": ("../..", LINK)}, "leads outside"),
        ({"n" * 300: "x"}, "too long"),
        ({".blobsync-00c0ffee.part": "x"}, "unfinished download"),
    ],
)
def test_an_old_python_refuses_code_that_would_lie_or_lead_outside(
    old: BootedNode, files: dict[str, str | tuple[str, int]], said: str
) -> None:
    body, digest = zip_of(files)
    spec = job(old, "true")
    old.service.put(CODE, body)
    spec = replace(spec, code=CodeRef(old.service.url, CODE, digest))
    done = old.do("prepare", spec)
    assert done.returncode == 72 and said in done.stderr
    assert list(old.scratch.iterdir()) == []


NAMES = (
    *("a", "a/b.py", "a\\b", "a b", "\u00e4", ".hidden", "a:b", "C:/x", "x" * 255, "-rf", ".blobsync-0123abcd.part2"),
    *("", "/", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/..", "./a", "a/.", "a\0b", "x" * 256, "\udc80"),
    *("y/" * 2100 + "y", ".blobsync-0123abcd.part", "a/.azDownload-0123abcd-0000-0000-0000-0123456789ab-x"),
)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_an_old_python_takes_the_names_that_blobsync_takes(name: str) -> None:
    def refused() -> bool:
        try:
            return old_python.inside("/base", name) != f"/base/{name}"
        except ValueError:
            return True

    assert refused() == bool(local_problem(name, "/base"))


def test_an_old_python_refuses_other_code_than_the_jobs_and_more_of_it(old: BootedNode) -> None:
    spec = job(old, "true")
    body, _ = zip_of({"a.txt": "of somebody else\n"})
    old.service.put(CODE, body)
    assert "does not hold the code that was submitted" in old.do("prepare", spec).stderr
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", bytes(80 << 20))
    old.service.put(CODE, buffer.getvalue())
    small = replace(spec, code=CodeRef(old.service.url, CODE, "0" * 64, size=5))
    assert "larger than it should be" in old.do("prepare", small).stderr


@pytest.mark.parametrize("size", [{"nodes": 2}, {"procs_per_node": 2}])
def test_several_processes_need_a_newer_python(old: BootedNode, size: dict[str, int]) -> None:
    done = old.do("prepare", job(old, "true", **size))
    assert done.returncode == 72 and "a job of several processes needs Python 3.10 or newer on its nodes" in done.stderr


def test_a_python_that_is_too_old_for_all_of_it_reads_the_sentence_that_says_so() -> None:
    text = Path(bootstrap.__file__).read_text()
    tree = ast.parse(text, feature_version=(3, 6))
    assert not any(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in tree.body)
    # A signature is evaluated when the file is read.
    signatures = [each.annotation for each in ast.walk(tree) if isinstance(each, ast.arg) and each.annotation]
    assert not any(isinstance(each, ast.Subscript) and ast.unparse(each.value) == "list" for each in signatures)
    assert text.index("sys.version_info < OLDEST") < text.index("os.execv(")


@pytest.mark.parametrize("verb", ["node", "here"])
def test_what_starts_processes_itself_needs_a_newer_python(old: BootedNode, verb: str) -> None:
    done = old.do(verb, job(old, "true"))
    assert done.returncode == 72 and f"{verb} needs Python 3.10 or newer; found: " in done.stderr


def test_a_warning_meanwhile_does_not_end_the_program(old: BootedNode, tmp_path: Path) -> None:
    spec = job(old, "sh", "-c", "trap 'echo heard; exit 3' USR1; echo up; while :; do sleep 0.05; done")
    with subprocess.Popen(old.command("exec", spec), env=old.environ(), stdout=subprocess.PIPE, text=True) as process:
        process.send_signal(signal.SIGCONT)
        assert process.stdout and process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "heard\n"
        assert process.wait(60) == 3
