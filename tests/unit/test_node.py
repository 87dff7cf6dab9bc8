from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import ArchiveError, LocalFileError
from blobsync.base.events import BytesMoved, BytesReused, Expected, FilesCounted, FilesDone, Looked, Phase
from blobsync.code.unpack import unpack_archive
from blobsync.jobs.failure_causes import read_causes
from blobsync.jobs.node_use import node_use
from blobsync.jobspec.spec import CodeRef, FolderLink, Secrets, TaskArray
from blobsync.node.job import NodeJob, demand_startable, parse_arguments
from blobsync.node.job_stores import JobStores
from blobsync.node.ranks import NotReadyError
from blobsync.node.transfers import NodeProgress, NodeTransfers
from tests.fakes.blob_service import BlobService, serve
from tests.fakes.bootstrap import python_of
from tests.fakes.jobs import CODE, Node, make_spec, zip_of
from tests.unit.test_node_imports import unpacked_archive
from tests.waiting import wait_until

LINK = 0o120777
# Seconds for what is soon true on a quiet machine.
PATIENCE = 60.0
SHOW = "import json,os,sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


@pytest.fixture
def service() -> Iterator[BlobService]:
    with serve() as service:
        yield service


@pytest.fixture
def node(tmp_path: Path, service: BlobService) -> Node:
    return Node(tmp_path, service)


# -- the command ---------------------------------------------------------------------------------------------


def test_a_task_has_its_parameters_and_its_failed_command_is_run_again(node: Node) -> None:
    node.env = {"BLOBSYNC_TASK": "4"}
    tasks = TaskArray(2, 0, numbers=(3, 4), names=("word",), rows=(("x",), ("a 'b",)))
    line = "echo {word} $BLOBSYNC_PARAM_WORD >> log; cat log; [ $(wc -l < log) = 3 ]"
    spec = make_spec(line, code=node.code({"a.py": ""}), tasks=tasks, retries=3)
    assert node.do("node", spec).returncode == 0
    log = (node.run / "task_4" / "user_logs" / "std_log.txt").read_text()
    assert log == "a 'b a 'b\n" * (1 + 2 + 3)
    said = (node.run / "task_4" / "system_logs" / "node_0.txt").read_text()
    assert "the command ended with 1; it starts again, retry 2 of 3" in said
    # A job without tasks is submitted again, by watch; a number that there is not is refused.
    assert node.do("node", replace(spec, tasks=None, argv=("exit 3 ",))).returncode == 3
    node.env["BLOBSYNC_TASK"] = "0"
    assert "the job has no task '0'" in node.do("node", spec).stderr


def test_the_cluster_file_chooses_the_folder_and_the_prefix(node: Node) -> None:
    options = {"work_dir": "sub", "command_prefix": "env 'GREETING=hello there'"}
    code = node.code({"sub/a.txt": "text"})
    assert (
        node.do("node", make_spec("sh", "-c", "cat a.txt; echo $GREETING", code=code, options=options)).returncode == 0
    )
    assert node.log() == "texthello there\n"
    assert node.do("node", make_spec("printenv GREETING; exit 3", code=code, options=options)).returncode == 3


def test_setup_runs_in_the_folder_of_the_command_and_may_make_it(node: Node) -> None:
    code = node.code({"sub/a.txt": "text", "a.txt": "another"})
    spec = make_spec("cat", "b.txt", code=code, options={"work_dir": "sub"}, setup=("cp a.txt b.txt",))
    assert node.do("node", spec).returncode == 0
    assert node.log() == "text"
    made = make_spec("cat", "a.txt", code=code, options={"work_dir": "new"}, setup=("mkdir new", "cp ../a.txt ."))
    assert node.do("node", made).returncode == 0
    assert node.log() == "textanother"


@pytest.mark.parametrize("work_dir", ["sbu", "sub/a.txt"])
def test_a_folder_for_the_command_that_is_not_there_is_named(node: Node, work_dir: str) -> None:
    code = node.code({"sub/a.txt": "text", "lib/b.txt": "", "c.txt": ""})
    done = node.do("node", make_spec("cat a.txt; true", code=code, options={"work_dir": work_dir}))
    assert done.returncode == 72
    told = f"there is no folder {work_dir}, the cluster file's work_dir, in the job's folder; its folders are: lib, sub"
    assert told in done.stderr and told in node.node_log
    assert "correct work_dir" in done.stderr
    # What `parse` says: nothing of a command that is not on the node.
    (found,) = read_causes("batch.txt", (done.stderr + node.node_log).splitlines())
    assert (found.cause.code, told in found.line) == ("Setup", True)


def test_a_node_can_stay_after_a_failure(node: Node) -> None:
    spec = make_spec("exit 5", code=node.code({"a": ""}), options={"sleep_if_fail": True})
    with node.start("node", spec) as running:
        assert wait_until(lambda: running.poll() is not None or has_said(node, "the node stays"))
        running.terminate()
        assert running.wait(PATIENCE) == 5


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"env": {"A": "x\0sentinel"}}, "the value of env.A holds a character"),
        ({"env": {"A": "\ud800sentinel"}}, "the value of env.A holds a character"),
        ({"env": {"A=B": "sentinel"}}, "env has a name that no system takes: 'A=B'"),
        ({"env": {"A\0": "sentinel"}}, "env has a name that no system takes: 'A\\x00'"),
        ({"env": {"": "sentinel"}}, "env has a name that no system takes: ''"),
        ({"argv": ("true", "a\0b")}, "command holds a character"),
        ({"argv": ()}, "the job has no command"),
        ({"setup": ("true\0",)}, "setup holds a character"),
        ({"options": {"work_dir": "a\0b"}}, "work_dir holds a character"),
        ({"options": {"command_prefix": "'open"}}, "command_prefix is not the start of a command"),
    ],
)
def test_what_no_system_can_start_is_named_without_its_value(changes: dict[str, object], told: str) -> None:
    with pytest.raises(NotReadyError) as refused:
        demand_startable(replace(make_spec("true"), **changes), Secrets({}, {}))  # type: ignore[arg-type]
    assert told in refused.value.message and "sentinel" not in refused.value.message


@pytest.mark.parametrize("verb", ["exec", "prepare", "node"])
def test_each_step_on_a_node_refuses_what_no_system_can_start_in_one_sentence(node: Node, verb: str) -> None:
    done = node.do(verb, make_spec("true", secret_env=("TOKEN",)), secret_env={"TOKEN": "sentinel\0"})
    assert (done.returncode, done.stderr.count("\n")) == (72, 1), done.stderr
    assert "the value of env.TOKEN holds a character" in done.stderr and "sentinel" not in done.stderr


@pytest.mark.parametrize("argv", [("mpirun", "-n", "2", "x"), ("A=1 ./mpirun -n 2 x",), ("srun", "x")])
def test_what_starts_processes_of_its_own_is_not_told_one_rank_for_all_of_them(
    node: Node, argv: tuple[str, ...]
) -> None:
    for name in ("mpirun", "srun"):
        (node.folder / name).write_text(
            "#!/bin/sh\necho ${RANK-none} ${WORLD_SIZE-none} $OMPI_COMM_WORLD_RANK $NODE_RANK\n"
        )
        (node.folder / name).chmod(0o755)
    node.env["PATH"] = f"{node.folder}:{os.environ['PATH']}"
    code = node.code({"mpirun": ("#!/bin/sh\nexec mpirun\n", 0o100755)})
    assert node.do("node", make_spec(*argv, code=code)).returncode == 0
    assert node.log() == "none none 0\n"


def test_that_our_own_steps_overlap_is_nothing_for_the_program(node: Node) -> None:
    node.env["SLURM_OVERLAP"] = "1"
    spec = make_spec("echo ${SLURM_OVERLAP-unset}; true", code=node.code({"a.py": ""}))
    assert node.do("node", spec).returncode == 0
    assert node.do("node", replace(spec, env={"SLURM_OVERLAP": "0"})).returncode == 0
    assert node.log() == "unset\n0\n"


def test_each_process_gets_its_arguments_as_they_were_given_and_knows_who_it_is(node: Node) -> None:
    awkward = ["two words", "$HOME", ";", "a'b\"c", "*", "", "--job"]
    spec = make_spec(
        *(sys.executable, "-c", SHOW, *awkward),
        procs_per_node=2,
        env={"LIST": "a,b c"},
        secret_env=("MY_TOKEN",),
        code=node.code({"a.py": ""}),
    )
    assert node.do("node", spec, secret_env={"MY_TOKEN": "hush"}).returncode == 0
    for rank in (0, 1):
        argv, env = json.loads(node.log(rank))
        assert argv == awkward
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "NODE_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
            "AZ_BATCH_HOST_LIST": "127.0.0.1",
            "LIST": "a,b c",
            "MY_TOKEN": "hush",
        }
        assert {name: env.get(name) for name in expected} == expected
        assert env["AZ_BATCH_MASTER_NODE"] == f"127.0.0.1:{env['MASTER_PORT']}"


def test_the_first_failure_ends_the_other_processes_and_is_the_exit_code(node: Node) -> None:
    # Longer than anybody waits for the node.
    script = 'import os,sys,time; sys.exit(5) if os.environ["RANK"] == "1" else time.sleep(600)'
    spec = make_spec(sys.executable, "-c", script, procs_per_node=2, code=node.code({"a": ""}))
    assert node.do("node", spec).returncode == 5


def test_exec_takes_its_place_from_the_launcher(node: Node) -> None:
    spec = make_spec(sys.executable, "-c", SHOW, nodes=2, procs_per_node=2, code=node.code({"a": ""}))
    node.env = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "SLURM_PROCID": "1",
        "AZ_BATCH_MASTER_NODE": "head:1234",
    }
    done = node.do("exec", spec)
    env = json.loads(done.stdout)[1]
    assert [env[name] for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR")] == [
        *("3", "1", "1", "4", "head")
    ]


def test_a_request_to_stop_reaches_the_program_and_its_exit_code_comes_back(node: Node, tmp_path: Path) -> None:
    marker = tmp_path / "ready"
    script = (
        "import signal,sys,time,pathlib\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(40))\n"
        f"pathlib.Path({str(marker)!r}).touch(); time.sleep(600)"
    )
    spec = make_spec(sys.executable, "-c", script, code=node.code({"a": ""}))
    with node.start("node", spec) as running:
        assert wait_until(marker.exists)
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 40


def test_a_stopped_process_leaves_nothing_on_its_node_once_the_others_have_ended(node: Node, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"touch {shlex.quote(str(ready))}; sleep 600"
    spec = make_spec("sh", "-c", script, procs_per_node=2, code=node.code({"a": ""}))
    node.env = {"RANK": "0", "LOCAL_RANK": "0"}
    other = Path(f"{node.root}.done1")
    with node.start("exec", spec) as running:
        assert wait_until(ready.exists)
        running.send_signal(signal.SIGTERM)
        time.sleep(1.0)
        assert node.root.is_dir() and running.poll() is None
        other.touch()
        assert running.wait(PATIENCE) == 128 + signal.SIGTERM
    assert not node.root.exists() and not other.exists()


def test_a_signal_that_arrives_while_the_program_is_started_is_not_lost(node: Node) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from blobsync.node.job import parse_arguments\n"
        "from blobsync.node.job import NodeJob; from blobsync.node.ranks import ranks_of_node\n"
        "from blobsync.node.processes import HeldSignals, run_processes; from blobsync.jobspec.spec import JobSpec\n"
        "words = parse_arguments(sys.argv[1:]); spec = JobSpec.from_json(words.job.read_text())\n"
        "job = NodeJob(spec, {}, words, os.environ, 0)\n"
        "def log_of(ranks):\n    os.kill(os.getpid(), signal.SIGTERM)\n    return job.rank_log(ranks.rank)\n"
        "sys.exit(run_processes(job, HeldSignals(), log_of, ranks_of_node(spec, 0)))"
    )
    node.root.mkdir()
    words = node.command("node", make_spec("sleep", "60"))[3:]
    done = subprocess.run([sys.executable, "-c", script, *words, "--node-rank", "0"], timeout=150, check=False)
    assert done.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("shell_line", [False, True])
def test_a_warning_waits_for_a_program_that_catches_it_and_kills_nothing_else(
    node: Node, tmp_path: Path, shell_line: bool
) -> None:
    started, go_on = tmp_path / "started", tmp_path / "go on"
    script = (
        "import os, pathlib, signal, sys, time\n"
        f"pathlib.Path({str(started)!r}).touch()\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(41))\n"
        "worker = os.fork()\n"
        "if worker: os.waitpid(worker, 0)\n"
        "else: time.sleep(60); os.write(1, b'the worker was left alone')"
    )
    python = [sys.executable, "-c", script]
    argv = [f"{shlex.join(python)}; code=$?; echo over; exit $code"] if shell_line else python
    with node.start("node", make_spec(*argv, code=node.code({"a": ""}))) as run:
        assert wait_until(started.exists)
        run.send_signal(signal.SIGUSR1)
        assert wait_until(lambda: has_said(node, "received SIGUSR1"))
        go_on.touch()
        assert run.wait(PATIENCE) == 41
    assert node.log() == ("over\n" if shell_line else "")


# -- the code --------------------------------------------------------------------------------------------------


def test_code_is_unpacked_with_run_bits_and_links(node: Node) -> None:
    code = node.code(
        {"run.sh": ("#!/bin/sh\ncat sub/link\n", 0o100755), "sub/a.txt": "hello", "sub/link": ("a.txt", LINK)}
    )
    assert node.do("node", make_spec("./run.sh", code=code), "--keep-root", "always").returncode == 0
    assert node.log() == "hello"
    assert os.readlink(node.root / "sub" / "link") == "a.txt"


def archive_of(*members: tuple[str, str | tuple[str, int]]) -> bytes:
    """A zip with these members in this order: a text, or one with the entry's Unix mode."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, value in members:
            text, mode = value if isinstance(value, tuple) else (value, 0o100644)
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, text)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ([("../evil", "x")], "outside"),
        ([("/evil", "x")], "outside"),
        ([("a/../../evil", "x")], "outside"),
        ([("link", ("/etc", LINK))], "link that leads"),
        ([("link", ("../..", LINK))], "link that leads"),
        ([("a", "one"), ("a", "two")], "'a' twice"),
        # Inside when it is created; outside as soon as the link on its way exists.
        ([("a", ("x/y/../../evil", LINK)), ("x", (".", LINK)), ("y", (".", LINK))], "link that leads"),
        (
            [("a", ("x/../evil", LINK)), ("x", ("sub/deep", LINK)), ("sub/deep", ("..", LINK))],
            "link that leads outside",
        ),
        ([("x", ("sub", LINK)), ("sub/a", ""), ("x/link", ("../../evil", LINK))], "outside|File exists"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_nothing_of_an_archive_leads_outside(
    tmp_path: Path, members: list[tuple[str, str | tuple[str, int]]], told: str
) -> None:
    for order in (members, members[::-1]):
        (tmp_path / "code.zip").write_bytes(archive_of(("b", ""), *order))
        target = tmp_path / "deep" / "root"
        target.mkdir(parents=True)
        with pytest.raises((ArchiveError, FileExistsError), match=told):
            unpack_archive(tmp_path / "code.zip", target, "", 0)
        assert {path.name for path in tmp_path.rglob("*") if target not in path.parents} == {"code.zip", "deep", "root"}
        shutil.rmtree(target)


def test_of_an_archive_that_leads_outside_nothing_stays(node: Node, service: BlobService) -> None:
    service.put(CODE, archive_of(("a", ("x/y/../../evil", LINK)), ("x", (".", LINK)), ("y", (".", LINK))))
    done = node.do("node", make_spec("true", code=CodeRef(service.url, CODE, "")), "--keep-root", "always")
    assert done.returncode == 72 and "link that leads outside" in done.stderr
    assert not node.root.exists() and not [path for path in node.folder.rglob("*") if path.is_symlink()]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"PK\x01\x02\x14\x03\x14", b"PK\x01\x02\x14\x03\x40"),  # written for version 6.4 of the format
        (b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00"),  # encrypted
    ],
)
def test_an_archive_that_no_program_can_read_is_reported(
    node: Node, service: BlobService, before: bytes, after: bytes
) -> None:
    body, _ = zip_of({"a.py": "x"})
    assert before in body
    service.put(CODE, body.replace(before, after))
    done = node.do("node", make_spec("true", code=CodeRef(service.url, CODE, "")))
    assert done.returncode == 72
    assert "could not be made ready" in done.stderr and "Traceback" not in done.stderr
    assert not node.root.exists()


def test_an_archive_unpacks_to_no_more_than_was_submitted(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(65 << 20))
    (tmp_path / "out").mkdir()
    with pytest.raises(ArchiveError, match="larger than it should be"):
        unpack_archive(bomb, tmp_path / "out", "", 1000)
    assert not list((tmp_path / "out").iterdir())
    # The size is as recorded.
    unpack_archive(bomb, tmp_path / "out", "", 65 << 20)


def test_an_archive_of_unknown_size_has_bounds_too(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(1000))
    body = bytearray(bomb.read_bytes())
    # The size of the member in the central directory, which readers use.
    at = body.index(b"PK\x01\x02") + 24
    body[at : at + 4] = (2**31).to_bytes(4, "little")
    bomb.write_bytes(body)
    (tmp_path / "out").mkdir()
    with pytest.raises(ArchiveError, match="larger than it should be"):
        unpack_archive(bomb, tmp_path / "out", "", 0)


def test_other_code_than_was_submitted_is_refused(node: Node, service: BlobService) -> None:
    spec = make_spec("true", code=node.code({"a.py": "one"}))
    service.put(CODE, zip_of({"a.py": "two"})[0])
    done = node.do("node", spec)
    assert done.returncode == 72
    assert "not hold the code that was submitted" in done.stderr


def test_a_body_that_breaks_off_and_a_busy_service_are_tried_again(node: Node, service: BlobService) -> None:
    spec = make_spec("cat", "a.txt", code=node.code({"a.txt": "x" * 5000}))
    service.cut, service.refuse = 2, 1
    assert node.do("node", spec).returncode == 0
    assert node.log() == "x" * 5000


def test_a_damaged_download_is_refused(node: Node, service: BlobService) -> None:
    spec = make_spec("true", code=node.code({"a": "1"}))
    service.md5[CODE] = "AAAAAAAAAAAAAAAAAAAAAA=="
    done = node.do("node", spec)
    assert done.returncode == 72 and "damaged" in done.stderr


def test_processes_of_a_node_prepare_it_once(node: Node, service: BlobService) -> None:
    spec = make_spec("true", procs_per_node=4, code=node.code({"a": ""}), setup=("echo once >> ../setups",))
    running = [node.start("prepare", spec) for _ in range(4)]
    assert [process.wait(PATIENCE) for process in running] == [0, 0, 0, 0]
    assert (node.folder / "setups").read_text() == "once\n"
    assert service.requests.count(f"GET /acct/box/{CODE}") == 1


def test_a_node_that_died_while_preparing_is_prepared_again(node: Node, service: BlobService) -> None:
    spec = make_spec("cat", "a.txt", code=node.code({"a.txt": "whole"}), setup=("touch ../begun; sleep 60",))
    with node.start("prepare", spec) as first:
        assert wait_until((node.folder / "begun").exists)
        first.kill()
    (node.root / "a.txt").write_text("half")
    again = make_spec("cat", "a.txt", code=spec.code)
    assert node.do("node", again).returncode == 0
    assert node.log() == "whole"


def test_without_an_archive_it_works_in_place_and_touches_nothing_else(node: Node) -> None:
    node.root.mkdir()
    (node.root / "a.txt").write_text("mine")
    (node.folder / "root.notes").write_text("mine too")
    before = sorted(path.name for path in node.folder.iterdir())
    for _ in range(2):
        assert node.do("node", make_spec("cat", "a.txt", setup=("true",))).returncode == 0
    assert node.log() == "minemine"
    assert sorted(path.name for path in node.folder.iterdir()) == sorted([*before, "run"])


def test_code_can_be_a_blob_folder(node: Node, service: BlobService) -> None:
    service.put("mine/code/sub/a.txt", b"from a folder")
    assert node.do("node", make_spec("cat", "sub/a.txt", code=CodeRef(service.url, "mine/code", ""))).returncode == 0
    assert node.log() == "from a folder"


# -- folders -----------------------------------------------------------------------------------------------------


def test_linked_folders_are_made_and_linked(node: Node, tmp_path: Path) -> None:
    source = tmp_path / "shared" / "output"
    folders = (node.folder_link("output", "link", source=str(source)),)
    spec = make_spec("sh", "-c", "echo result > output/r.txt", code=node.code({"a": ""}), folders=folders)
    assert node.do("node", spec).returncode == 0
    assert (source / "r.txt").read_text() == "result\n"


def test_nested_links_and_what_the_archive_has_in_their_place(node: Node, tmp_path: Path) -> None:
    folders = (
        node.folder_link("data/coco", "link", source=str(tmp_path / "p" / "data" / "coco")),
        node.folder_link("data", "link", source=str(tmp_path / "p" / "data")),
    )
    code = node.code({"data/old.txt": "from the archive"})
    done = node.do("node", make_spec("ls data", code=code, folders=folders), "--keep-root", "always")
    assert (done.returncode, node.log()) == (0, "coco\n")


def test_a_download_inside_a_linked_folder_is_refused(node: Node, tmp_path: Path) -> None:
    folders = (
        node.folder_link("data", "link", source=str(tmp_path / "data")),
        node.folder_link("data/coco", "download"),
    )
    done = node.do("node", make_spec("true", code=node.code({"a": ""}), folders=folders))
    assert done.returncode == 72 and "is inside another folder" in done.stderr


def test_downloads_bring_the_folder_or_the_included_parts(node: Node, service: BlobService) -> None:
    for name in ("voc/a.txt", "voc/b/c.txt", "voc20/x.txt", "coco.txt", "log1.csv", "log2.csv"):
        service.put(f"mine/data/{name}", name.encode())
    service.put("mine/database/no.txt", b"no")
    for include, expected in (
        ((), "./coco.txt ./log1.csv ./log2.csv ./voc/a.txt ./voc/b/c.txt ./voc20/x.txt"),
        (("voc", "coco.txt", "log*.csv"), "./coco.txt ./log1.csv ./log2.csv ./voc/a.txt ./voc/b/c.txt"),
    ):
        folders = (node.folder_link("data", "download", include=include),)
        spec = make_spec("cd data; find . -type f | sort | xargs", code=node.code({"a": ""}), folders=folders)
        assert node.do("node", spec).returncode == 0
        assert node.log().splitlines()[-1] == expected


def test_an_included_part_that_is_not_there_fails_the_setup(node: Node) -> None:
    folders = (node.folder_link("data", "download", include=("vco",)),)
    done = node.do("node", make_spec("true", code=node.code({"a": ""}), folders=folders))
    assert done.returncode == 72 and "vco was not found in" in done.stderr


def test_outputs_of_a_program_that_fails_reach_the_container(node: Node, service: BlobService) -> None:
    folders = (node.folder_link("output", "upload"),)
    links = f"ln -s s output/latest; ln -s {node.folder} output/far"
    line = f"mkdir output/s; {links}; echo model > output/s/m.bin; exit 7"
    assert node.do("node", make_spec(line, code=node.code({"a": ""}), folders=folders)).returncode == 7
    assert service.blobs["mine/output/s/m.bin"] == b"model\n"
    assert (
        "upload of output/far: left out, a symlink to a folder elsewhere, which a job does not upload" in node.node_log
    )
    assert "output/latest: left out" not in node.node_log
    assert not node.root.exists()


@pytest.mark.parametrize("code", [0, 7])
def test_what_cannot_be_written_at_the_end_changes_no_exit_code(node: Node, service: BlobService, code: int) -> None:
    node.env = {"RANK": "0", "LOCAL_RANK": "0"}
    folders = (node.folder_link("output", "upload"),)
    # As on a full disk, where no file can be made.
    line = f'mkdir "$BLOBSYNC_ROOT.done0" {node.run}/job_code; echo model > output/m.bin; exit {code}'
    done = node.do("exec", make_spec(line, code=node.code({"a": ""}), folders=folders), "--log")
    assert (done.returncode, done.stderr) == (code, "")
    assert service.blobs["mine/output/m.bin"] == b"model\n"


def test_what_cannot_be_written_before_the_command_is_one_sentence(node: Node) -> None:
    node.env = {"RANK": "0", "LOCAL_RANK": "0"}
    spec = make_spec("true", code=node.code({"a": ""}))
    node.command("exec", spec)
    (node.run / "up").write_text("in the way")
    done = node.do("exec", spec)
    assert done.returncode == 72
    (said,) = done.stderr.splitlines()
    assert re.fullmatch(r"blobsync: this node could not be made ready: .*/up/0\.\d+: Not a directory", said)


def test_what_is_written_outside_of_the_folders_is_named_once_before_it_goes(node: Node, service: BlobService) -> None:
    node.env = {"RANK": "0", "LOCAL_RANK": "0"}
    linked = node.run / "linked"
    linked.mkdir(parents=True)
    folders = (node.folder_link("data", "link", source=str(linked)), node.folder_link("output", "upload"))
    line = (
        "mkdir -p runs/x __pycache__; head -c 3000 /dev/zero > runs/x/model.pt; echo 1 >> train.py; echo 2 > output/o"
    )
    line += "; echo 3 > __pycache__/y; ln -s /dev/null runs/link; exit $(cat code)"
    spec = make_spec(
        line, code=node.code({"train.py": "", "b.py": "", "code": "0"}), folders=folders, setup=("touch z",)
    )
    assert node.do("exec", spec, "--log").returncode == 0
    assert node.do("finish", spec, "--code", "0").returncode == 0
    (said,) = [line.split("Z ", 1)[1] for line in node.node_log.splitlines() if "left behind" in line]
    assert said == (
        "left behind: 2 files, 3 KB outside of the job's folders, removed with its code: runs/x/model.pt, train.py;"
        " to keep such files write them below output/, or add runs_folder with mode: upload to the cluster file"
    )
    assert not node.root.exists()
    spec = replace(spec, code=node.code({"code": "7"}))
    assert node.do("exec", spec, "--log", "--keep-root", "failed").returncode == 7
    assert node.node_log.count("left behind") == 1, "the other one is still there"


def test_large_outputs_go_in_blocks(node: Node, service: BlobService) -> None:
    folders = (node.folder_link("output", "upload"),)
    # Random bytes: equal blocks would be sent once.
    line = "head -c 40000000 /dev/urandom | tee output/big.bin | sha256sum"
    assert node.do("node", make_spec(line, code=node.code({"a": ""}), folders=folders)).returncode == 0
    assert hashlib.sha256(service.blobs["mine/output/big.bin"]).hexdigest() == node.log().split()[0]
    assert len(service.blocks) > 2


def test_outputs_are_uploaded_while_the_job_runs(node: Node, service: BlobService, tmp_path: Path) -> None:
    folders = (node.folder_link("output", "upload"),)
    old = "touch -d '1 hour ago' output/early.txt"
    line = f"echo early > output/early.txt; {old}; while [ ! -e {tmp_path}/stop ]; do sleep 0.1; done"
    spec = make_spec(line, code=node.code({"a": ""}), folders=folders, logs=node.mirror)
    with node.start("node", spec, "--sync-seconds", "0.2") as running:
        assert wait_until(lambda: "mine/output/early.txt" in service.blobs)
        assert running.poll() is None
        (tmp_path / "stop").touch()
        assert running.wait(PATIENCE) == 0
    assert service.blobs["mine/output/early.txt"] == b"early\n"
    assert node_use(0, node.node_log.splitlines()).samples, "pages read what the node writes"


def test_outputs_that_cannot_be_brought_out_fail_the_job_and_stay(node: Node) -> None:
    folders = (node.folder_link("output", "upload"),)
    spec = make_spec("echo x > output/x; rm -f ../run/secrets.json", code=node.code({"a": ""}), folders=folders)
    broken = json.loads(spec.to_json())
    broken["folders"][0]["container"] = node.service.url + "-gone"
    (node.run).mkdir()
    command = node.command("node", spec)
    (node.run / "job.json").write_text(json.dumps(broken))
    assert subprocess.run(command, env=node.environ(), timeout=150).returncode == 73
    assert (node.root / "output" / "x").exists()


def test_mount_says_what_is_missing(node: Node, tmp_path: Path) -> None:
    node.env = {"PATH": f"{tmp_path}:/bin:/usr/bin"}
    folders = (node.folder_link("data", "mount"),)
    done = node.do("node", make_spec("true", code=node.code({"a": ""}), folders=folders))
    assert done.returncode == 72 and "no blobfuse2" in done.stderr


def test_mount_gives_blobfuse2_its_token_in_the_environment_only(node: Node, tmp_path: Path) -> None:
    fake = tmp_path / "bin" / "blobfuse2"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/argv; env > {tmp_path}/env; echo mounted > "$2/m.txt"\n')
    fake.chmod(0o755)
    node.env = {"PATH": f"{fake.parent}:{os.environ['PATH']}"}
    options = ("-o", "attr_timeout=240", "-o ro")
    folders = (node.folder_link("data", "mount", cache_seconds=30, fuse_options=options),)
    assert node.do("node", make_spec("cat data/m.txt", code=node.code({"a": ""}), folders=folders)).returncode == 0
    assert node.log() == "mounted\n"
    argv = (tmp_path / "argv").read_text()
    assert "--container-name=box" in argv and "--subdirectory=mine/data" in argv and "--file-cache-timeout=30" in argv
    assert argv.endswith(" -o attr_timeout=240 -o ro\n")
    assert "SENTINEL" not in argv
    assert "AZURE_STORAGE_SAS_TOKEN=sv=2021-12-02" in (tmp_path / "env").read_text()


@pytest.mark.parametrize(("files", "size"), [(400, 1), (1, 40 << 20)])
def test_a_job_that_is_stopped_while_its_data_comes_leaves_nothing(
    node: Node, service: BlobService, files: int, size: int
) -> None:
    for number in range(files):
        service.put(f"mine/data/{number:03}", bytes(size))
    spec = make_spec("true", code=node.code({"a": ""}), folders=(node.folder_link("data", "download"),))
    # Most of them never come, however late the signal does.
    service.page, service.hangs_after = 1000, 6
    with node.start("node", spec) as running:
        assert wait_until(lambda: service.pieces > 5)
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 128 + signal.SIGTERM
    assert not node.root.exists() and not list(node.folder.glob("root.*"))


# -- setup, logs, secrets ------------------------------------------------------------------------------------------


def test_a_setup_command_that_fails_is_not_the_programs_failure(node: Node) -> None:
    spec = make_spec("echo never", code=node.code({"a": ""}), setup=("echo about to fail", "exit 9"), logs=node.mirror)
    done = node.do("node", spec)
    assert done.returncode == 72
    assert "the setup command ended with 9: exit 9" in done.stderr
    assert not node.root.exists()
    assert "about to fail" in node.node_log
    assert not (node.run / "user_logs").exists()
    assert b"ended with 9" in node.service.blobs["mine/output.logs/me/system_logs/node_0.txt"]


def test_logs_are_mirrored_and_continued(node: Node, service: BlobService) -> None:
    spec = make_spec("echo line", code=node.code({"a": ""}), logs=node.mirror)
    assert node.do("node", spec).returncode == 0
    assert service.blobs["mine/output.logs/me/user_logs/std_log.txt"] == b"line\n"
    assert node.do("node", spec).returncode == 0
    assert service.blobs["mine/output.logs/me/user_logs/std_log.txt"] == b"line\nline\n"


def test_only_a_transfers_job_asks_for_a_transfers_key() -> None:
    given = Secrets({}, {"BLOBSYNC_SPREAD_KEY": "ab", "MY_TOKEN": "c", "BASH_ENV": "d"})
    spec = make_spec("true", secret_env=("MY_TOKEN",))
    assert given.asked_for(spec).env == {"MY_TOKEN": "c"}
    assert given.asked_for(replace(spec, secret_env=(), options={"spread": {}})).env == {"BLOBSYNC_SPREAD_KEY": "ab"}


def test_a_file_of_secrets_sets_no_variable_that_the_job_does_not_ask_for(node: Node, tmp_path: Path) -> None:
    spec = make_spec(
        "echo $MY_TOKEN ${BASH_ENV-none}; true",
        code=node.code({"a": ""}),
        setup=("echo ${BASH_ENV-none}",),
        secret_env=("MY_TOKEN",),
    )
    given = {"MY_TOKEN": "asked for", "BASH_ENV": f"$(touch {tmp_path}/taken)", "PATH": "/nowhere"}
    done = node.do("node", spec, secret_env=given)
    assert done.returncode == 0, done.stderr
    assert node.log() == "asked for none\n"
    assert not (tmp_path / "taken").exists()


def test_no_secret_reaches_a_log(node: Node, service: BlobService) -> None:
    spec = make_spec(
        "hush-hush-program",
        code=node.code({"a": ""}),
        setup=("echo hush-hush",),
        folders=(node.folder_link("data", "download"),),
        logs=node.mirror,
        secret_env=("MY_TOKEN",),
    )
    service.refuse = 3
    done = node.do("node", spec, secret_env={"MY_TOKEN": "hush-hush"})
    told = done.stdout + done.stderr + "".join(path.read_text() for path in node.run.rglob("*.txt"))
    assert "SENTINEL" not in told and done.returncode == 127, "as in a shell, where there is no such program"
    assert "setup: echo ***" in node.node_log and "cannot start ***-program" in node.log()


@pytest.mark.parametrize(
    "sas", ["sv=1&sp=r wl&sig=SENTINEL /x", "?sv=1&sig=SENTINEL NEL\t", " sv=1&sig=SENTINEL\u00e4 "]
)
def test_a_sas_that_no_url_can_hold_is_refused_and_not_told(node: Node, service: BlobService, sas: str) -> None:
    node.sas = sas
    done = node.do("node", make_spec("true", code=node.code({"a": ""})))
    assert done.returncode == 72 and "SENTI" not in done.stderr and "NEL" not in done.stderr
    assert f"the SAS for {service.url} cannot be used: not a SAS token" in done.stderr


def test_a_fault_of_blobsync_itself_shows_no_secret() -> None:
    forms = ["sig=SENTINEL", "sig=SENTI/NEL+", "sig=SENTI%2FNEL%2B"]
    script = (
        "import sys, threading; from blobsync.node.__main__ import redact_tracebacks\n"
        "from blobsync.node.job_stores import JobStores\n"
        "redact_tracebacks(); JobStores({f'https://a.b/{one}': one for one in sys.argv[1:]}, {})\n"
        "def fail(): raise ValueError(*[f'https://a.b/c?{one}' for one in sys.argv[1:]])\n"
        "thread = threading.Thread(target=fail); thread.start(); thread.join(); fail()"
    )
    done = subprocess.run([sys.executable, "-c", script, *forms], capture_output=True, text=True, timeout=150)
    assert done.returncode == 1 and done.stderr.count("https://a.b/c?") == 2 * len(forms)
    assert "SENTI" not in done.stderr


def test_a_container_that_is_no_url_gets_no_request(node: Node, service: BlobService) -> None:
    service.url = "no-scheme/box"
    done = node.do("node", make_spec("true", code=CodeRef(service.url, CODE, "")))
    assert done.returncode == 72 and "'no-scheme/box' is not a container URL" in done.stderr
    assert "SENTI" not in done.stderr


def test_a_refused_request_names_no_token(node: Node, service: BlobService) -> None:
    done = node.do("node", make_spec("true", code=CodeRef(service.url, "gone.zip", "")))
    assert done.returncode == 72
    assert f"there is no code gone.zip in {service.url}" in done.stderr and "SENTINEL" not in done.stderr


def has_said(node: Node, text: str) -> bool:
    """Whether the node's log, which may not be there yet, has this text."""
    with suppress(FileNotFoundError):
        return text in node.node_log
    return False


@pytest.mark.parametrize("squat", ["a link", "another owner", "others may write", "nothing"])
def test_a_scratch_folder_that_somebody_else_made_first_is_not_used(tmp_path: Path, squat: str) -> None:
    place, home = tmp_path / f"blobsync-{os.getuid()}", tmp_path / "home"
    if squat == "a link":
        (tmp_path / "mine").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "mine")
    elif squat == "another owner":
        if os.getuid():
            pytest.skip("only root can give a folder away")
        place.mkdir(0o700)
        os.chown(place, 54_321, 54_321)
    elif squat == "others may write":
        place.mkdir()
        place.chmod(0o777)
    ask = "import os; from blobsync.node.job import scratch_root; print(scratch_root('run', 0, os.environ))"
    environ = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(home)}
    environ.pop("SLURMD_NODENAME", None)
    said = subprocess.run([sys.executable, "-c", ask], env=environ, capture_output=True, text=True, check=True).stdout
    expected = place if squat == "nothing" else home / ".local/state/blobsync/scratch"
    assert said == f"{expected}/run/node0\n"


# -- transfers as on a workstation -------------------------------------------------------------------------------------


def test_a_node_says_how_far_its_downloads_are_before_the_command_starts(node: Node, service: BlobService) -> None:
    service.put("mine/data/big", bytes(3 << 20))
    # The code has one piece. A request that is sent again gets two, too.
    service.hangs_within = 2
    spec = make_spec("true", code=node.code({"a": ""}), folders=(node.folder_link("data", "download"),))

    def samples() -> list[str]:
        log = node.run / "system_logs/node_0.txt"
        return [one.preparing for one in node_use(0, log.read_text().splitlines()).samples] if log.exists() else []

    with node.start("node", spec, "--sync-seconds", "0.05") as running:
        partly = "data: 0 of 1 file, 2.1 MB of 3.15 MB"
        assert wait_until(lambda: partly in samples()), "; ".join(samples() + service.requests)
        service.over.set()
        assert running.wait(PATIENCE) == 0


def test_files_and_bytes_that_come_are_counted(tmp_path: Path) -> None:
    words = ["node", "--job", str(tmp_path / "job.json"), "--run-dir", str(tmp_path)]
    progress = NodeProgress(NodeJob(make_spec("true"), {}, parse_arguments(words), {}, 0))
    assert progress.text == ""
    progress.begin("data")
    assert progress.text == "data"
    progress.emit(Looked(1200))
    assert progress.text == "data: 1,200 names listed"
    progress.emit(Phase("moving"))
    for event in (Expected(1000, 5_000_000), BytesMoved(1_000_000), BytesReused(500_000), BytesMoved(-250_000)):
        progress.emit(event)
    # Counted at first, and then known by name.
    for counted in (FilesCounted(2), FilesDone(["data/a"]), FilesCounted(-1)):
        progress.emit(counted)
    assert progress.text == "data: 2 of 1,000 files, 1.25 MB of 5 MB"
    for verified in (Phase("verifying"), Looked(2)):
        progress.emit(verified)
    assert progress.text == "data: 2 of 1,000 files, 1.25 MB of 5 MB"
    progress.begin("model")
    assert progress.text == "model"


def test_a_download_that_was_killed_goes_on_where_it_was(node: Node, service: BlobService) -> None:
    for number in range(40):
        service.put(f"mine/data/{number:02}", bytes(100_000 + number))
    service.pause = 0.1
    folders = (node.folder_link("data", "download"),)
    spec = make_spec("sh", "-c", "ls data | wc -l", code=node.code({"a": ""}), folders=folders)
    with node.start("prepare", spec) as first:
        assert wait_until(lambda: (node.root / "data").is_dir() and len(list((node.root / "data").glob("[0-9]*"))) > 10)
        first.kill()
    arrived = {path.name for path in (node.root / "data").glob("[0-9]*")}
    service.pause, service.requests = 0, []
    assert node.do("node", spec).returncode == 0
    assert node.log().strip() == "40"
    asked = {path.rpartition("/")[2] for path in service.requests if path.startswith("GET /acct/box/mine/data/")}
    assert arrived and not arrived & asked and len(arrived | asked) == 40


@pytest.fixture
def small_node(tmp_path: Path, service: BlobService) -> Iterator[Node]:
    """A node whose disk has 400 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    mounted = subprocess.run(words, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"may not mount a tmpfs here: {mounted.stderr.decode().strip()}")
    yield Node(disk, service)
    subprocess.run(["umount", str(disk)], check=True)


def test_a_download_that_cannot_fit_on_the_node_is_refused_with_both_figures(
    small_node: Node, service: BlobService
) -> None:
    for number in range(30):
        service.put(f"mine/data/{number}", bytes(100_000))
    folders = (small_node.folder_link("data", "download"),)
    done = small_node.do("node", make_spec("true", code=small_node.code({"a": ""}), folders=folders))
    assert done.returncode == 72 and "(disk_too_small)" in done.stderr, done.stderr
    assert re.search(r"data: 3 MB would be written to \S+/data, and [\d.]+ KB are free", done.stderr)
    assert not [path for path in service.requests if path.startswith("GET /acct/box/mine/data/")]


def test_the_first_file_without_room_on_the_node_ends_the_job_with_its_sentence(
    small_node: Node, service: BlobService
) -> None:
    """A disk on which small files take a whole block each, so that their sizes seem to fit."""
    for number in range(400):
        service.put(f"mine/data/{number:04}", bytes(10))
    service.page = 1000
    folders = (small_node.folder_link("data", "download"),)
    done = small_node.do("node", make_spec("true", code=small_node.code({"a": ""}), folders=folders))
    assert done.returncode == 72, done.stderr
    said = r"data: [\d,]+ of 400 files did not arrive; the first: \S+/data/\d{4}: No space left on device"
    assert re.search(rf"could not be made ready: {said} \(disk_full\); free some space", done.stderr), done.stderr
    assert "Traceback" not in done.stderr and not small_node.root.exists()
    # At most a hundred fit, and 64 are under way when the first one fails.
    asked = [path for path in service.requests if path.startswith("GET /acct/box/mine/data/")]
    assert len(asked) <= 100 + 64
    # Of the failures 20 are listed, first those of files that were tried: as many as were under way. A line goes into
    # the node's log while that has room.
    told = done.stderr + small_node.node_log
    listed = re.findall(r"/data/\d{4}: No space left on device \(disk_full\)", told)
    assert "not tried, since others failed: " in told or len(listed) >= 20, told


def test_of_an_attempt_that_was_killed_only_what_arrived_is_kept(node: Node, service: BlobService) -> None:
    for name in ("a.txt", "b.txt", "sub/c.txt"):
        service.put(f"mine/data/{name}", name.encode())
    folders = (node.folder_link("data", "download"),)
    spoil = "cd data; echo x >> a.txt; rm b.txt; mkfifo b.txt; rm -r sub; ln -s /etc sub; echo y > more"
    spoil += "; touch ../../up; sleep 60"
    spec = make_spec("true", code=node.code({"data/old": ""}), folders=folders, setup=(spoil,))
    with node.start("prepare", spec) as first:
        assert wait_until((node.folder / "up").exists)
        first.kill()
    service.requests = []
    again = make_spec("cd data; cat a.txt b.txt sub/c.txt; find . ! -type d | wc -l", code=spec.code)
    assert node.do("node", replace(again, folders=folders)).returncode == 0
    assert node.log() == "a.txtb.txtsub/c.txt3\n"
    asked = {path.rpartition("/")[2] for path in service.requests if path.startswith("GET /acct/box/mine/data/")}
    assert asked == {"a.txt", "b.txt", "c.txt"}


def test_what_an_attempt_left_and_cannot_be_read_is_not_taken_for_nothing(node: Node, service: BlobService) -> None:
    entry = node.folder_link("data", "download")
    spec = make_spec("true", folders=(entry,))
    transfers = NodeTransfers(NodeJob(spec, {}, parse_arguments(node.command("prepare", spec)[3:]), {}, 0))
    remote = JobStores({service.url: node.sas}, {}).blobs(entry.container, entry.path)
    (node.folder / "loop").symlink_to(node.folder / "loop")
    with closing(transfers), pytest.raises(LocalFileError, match="loop: Too many levels of symbolic links"):
        transfers.drop_unrecorded("data", remote, node.folder / "loop")


def test_a_local_file_of_the_same_size_and_other_content_is_not_taken_for_the_blob(
    node: Node, service: BlobService
) -> None:
    """Without a code archive the job runs in the user's own folder: nothing there is replaced or trusted."""
    service.put("mine/data/a.txt", b"theirs")
    (node.root / "data").mkdir(parents=True)
    (node.root / "data/a.txt").write_bytes(b"mine..")
    folders = (node.folder_link("data", "download"),)
    done = node.do("node", make_spec("true", folders=folders))
    assert done.returncode == 72 and "data/a.txt" in done.stderr and "(conflict)" in done.stderr
    assert (node.root / "data/a.txt").read_bytes() == b"mine.."
    (node.root / "data/a.txt").write_bytes(b"theirs")
    node.env = {"SLURM_RESTART_COUNT": "1"}
    assert node.do("node", make_spec("cat", "data/a.txt", folders=folders)).returncode == 0
    assert node.log() == "theirs"


def test_a_blob_whose_md5_differs_from_its_bytes_fails_with_the_code_of_a_download(
    node: Node, service: BlobService
) -> None:
    service.put("mine/data/a.txt", b"bytes")
    service.md5["mine/data/a.txt"] = "AAAAAAAAAAAAAAAAAAAAAA=="
    folders = (node.folder_link("data", "download"),)
    done = node.do("node", make_spec("true", code=node.code({"a": ""}), folders=folders))
    assert done.returncode == 72 and "(checksum_mismatch)" in done.stderr
    assert not node.root.exists()


def test_a_blob_whose_name_leads_outside_is_refused_with_all_others(node: Node, service: BlobService) -> None:
    service.put("mine/data/a.txt", b"good")
    service.put("mine/data/../../evil", b"evil")
    folders = (node.folder_link("data", "download"),)
    done = node.do("node", make_spec("true", code=node.code({"a": ""}), folders=folders), "--keep-root", "always")
    assert done.returncode == 72 and "which would escape the folder" in done.stderr
    assert not [path for path in node.folder.rglob("*") if path.name in ("evil", "a.txt")]


def test_only_outputs_that_differ_from_the_containers_are_sent(node: Node, service: BlobService) -> None:
    service.put("mine/output/r.txt", b"of an earlier job")
    service.put("mine/output/same.txt", b"same\n")
    folders = (node.folder_link("output", "upload"),)
    line = "echo mine > output/r.txt; echo same > output/same.txt"
    assert node.do("node", make_spec(line, code=node.code({"a": ""}), folders=folders)).returncode == 0
    assert service.blobs["mine/output/r.txt"] == b"mine\n"
    sent = [each for each in service.requests if each.startswith("PUT /acct/box/mine/output/")]
    assert sent and not [each for each in sent if "same.txt" in each]


def test_outputs_whose_names_no_blob_can_have_are_named_and_the_others_go_out(node: Node, service: BlobService) -> None:
    folders = (node.folder_link("output", "upload"),)
    line = r'touch output/fine "output/$(printf "bad\001name")" "output/$(printf "bad\377name")"'
    assert node.do("node", make_spec(line, code=node.code({"a": ""}), folders=folders)).returncode == 73
    assert "mine/output/fine" in service.blobs and node.node_log.count("(names_unsafe)") >= 2
    assert "is not valid UTF-8 (names_unsafe)" in node.node_log and "control character" in node.node_log
    assert "\x01" not in node.node_log and "Traceback" not in node.node_log


def test_a_mounted_place_is_read_like_a_container(node: Node, tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    (mount / "deep").mkdir(parents=True)
    (mount / "deep/a.txt").write_text("from the mount")
    (mount / "other.txt").write_text("not wanted")
    body, digest = zip_of({"b.txt": "from the zip"})
    (tmp_path / "project.zip").write_bytes(body)
    folder = FolderLink("data", f"mounted:{mount}", "", "download", include=("deep",))
    code = CodeRef(f"mounted:{tmp_path / 'project.zip'}", "code/project.zip", digest)
    spec = make_spec("cat data/deep/a.txt b.txt; ls data", code=code, folders=(folder,))
    assert node.do("node", spec).returncode == 0
    assert node.log() == "from the mountfrom the zipdeep\n"


def test_several_nodes_that_nobody_told_apart_or_without_a_master_end_with_one_sentence(node: Node) -> None:
    spec = make_spec("echo never", nodes=2, code=node.code({"a": ""}))
    for verb, what in (
        ("exec", "the rank of this one is unknown: none of OMPI"),
        ("prepare", "none of SLURM_NODEID, NODE_RANK"),
    ):
        done = node.do(verb, spec)
        assert done.returncode == 72 and what in done.stderr, verb
    node.env = {"RANK": "1", "MASTER_ADDR": ""}
    done = node.do("exec", spec)
    assert done.returncode == 72 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "the address of the master is unknown" in done.stderr
    node.env = {"RANK": "1", "MASTER_ADDR": "head"}
    assert node.do("exec", spec).returncode == 0


def test_two_packages_are_enough_for_a_whole_job(node: Node, service: BlobService, tmp_path: Path) -> None:
    python = python_of("3.10")
    if python is None:
        pytest.skip("there is no Python 3.10 on this machine")
    node.python, node.program = python, ("-I", "-S", str(unpacked_archive(tmp_path / "archive")))
    service.put("mine/data/a.txt", b"data")
    folders = (node.folder_link("data", "download"), node.folder_link("output", "upload"))
    line = "cp data/a.txt output/$RANK.txt"
    spec = make_spec(
        line, procs_per_node=2, code=node.code({"a": ""}), folders=folders, setup=("true",), logs=node.mirror
    )
    done = node.do("node", spec)
    assert done.returncode == 0, done.stderr
    assert service.blobs["mine/output/1.txt"] == b"data" and "Python 3.10" in node.node_log
    assert "mine/output.logs/me/system_logs/node_0.txt" in service.blobs


def test_a_node_that_was_never_ready_is_left_clean_by_finish(node: Node) -> None:
    folders = (node.folder_link("output", "upload"),)
    spec = make_spec("true", code=node.code({"a": ""}), folders=folders, setup=("exit 3",))
    assert node.do("prepare", spec).returncode == 72
    spec = make_spec("true", code=CodeRef(node.service.url, "gone.zip", ""), folders=folders)
    node.env = {"SLURM_RESTART_COUNT": "1"}
    assert node.do("prepare", spec).returncode == 72
    assert node.do("finish", spec, "--code", "72").returncode == 0
    assert not list(node.folder.glob("root*"))


def test_two_nodes_that_write_one_file_both_bring_it_out(node: Node, service: BlobService) -> None:
    """The second node finds a newer version than it listed, and lists again."""
    folders = (node.folder_link("output", "upload"),)
    spec = make_spec("echo mine > output/r.txt", code=node.code({"a": ""}), folders=folders)
    service.meanwhile = {"mine/output/r.txt": b"of the other node"}
    assert node.do("node", spec).returncode == 0
    assert service.blobs["mine/output/r.txt"] == b"mine\n"
    assert "(changed_meanwhile)" in node.node_log and service.meanwhile == {}
