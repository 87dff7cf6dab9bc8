"""Checkpoints on nodes: marked while the command runs, brought back before it, on one node and on two."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.redaction import Secret
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.jobs.node_use import node_use
from blobsync.jobspec.spec import FolderLink, JobSpec
from blobsync.keep.node_messages import Notes, Over
from blobsync.node.job import NodeJob, parse_arguments
from blobsync.node.job_checkpoints import restore_checkpoint
from blobsync.node.job_stores import JobStores
from blobsync.node.machine import heartbeat
from blobsync.node.ranks import NotReadyError, Ranks
from blobsync.node.transfers import NodeTransfers
from tests.fakes.blob_service import BlobService, serve
from tests.fakes.jobs import Node, make_spec
from tests.fakes.lineages import content, keys, sent
from tests.waiting import PATIENCE

RULE = CheckpointRule("checkpoint-*", settle_seconds=0)
MARKS = ".blobsync/checkpoints/mine%2Foutput/me_1_0badcafe"
# Writes checkpoint-N as the Trainer does, after it has said what it was given.
TRAIN = (
    'echo "restored ${BLOBSYNC_RESTORED:-nothing} at ${BLOBSYNC_RESTORED_STEP:-0}"; ls output;'
    " train() { mkdir -p output/checkpoint-$1; echo weights $1 > output/checkpoint-$1/model.bin;"
    " echo '{}' > output/checkpoint-$1/trainer_state.json; };"
)


@pytest.fixture
def service() -> Iterator[BlobService]:
    with serve() as service:
        yield service


@pytest.fixture
def node(tmp_path: Path, service: BlobService) -> Node:
    return Node(tmp_path / "node0", service)


def spec_of(node: Node, line: str, rule: CheckpointRule = RULE, **changes: Any) -> JobSpec:
    folders = (node.folder_link("output", "upload", checkpoints=rule),)
    # Of node 0 a job of several has the code, too.
    return make_spec(TRAIN + line, code=node.code({"a": ""}), folders=folders, **changes)


def again(node: Node, number: int = 1, **variables: str) -> Node:
    """Another node, on which the job starts for another time."""
    env = {"BLOBSYNC_ATTEMPT": str(number), **variables}
    return Node(node.folder.parent / f"node{number}", node.service, env=env)


def marked(service: BlobService, prefix: str = MARKS) -> dict[str, dict[str, Any]]:
    found = [name for name in service.blobs if name.startswith(f"{prefix}/") and "/" not in name[len(prefix) + 1 :]]
    return {each["stored"]: each for each in (content(service.blobs[name]) for name in found)}


def test_a_checkpoint_is_marked_and_the_next_start_goes_on_from_it(node: Node, service: BlobService) -> None:
    spec = spec_of(node, "train 10; train 20; mkdir output/checkpoint-30; echo x > output/checkpoint-30/model.bin")
    assert node.do("node", spec).returncode == 0
    assert sorted(marked(service)) == ["checkpoint-10", "checkpoint-20"]
    mark = marked(service)["checkpoint-20"]
    assert (mark["step"], mark["run_id"], mark["lineage"]) == (20, "me_1_0badcafe", "me_1_0badcafe")
    assert spec.code is not None and mark["code"] == spec.code.digest
    assert "mine/output/checkpoint-30/model.bin" in service.blobs, "nothing is lost, though it is half"
    assert "checkpoint-30 is not complete" in node.node_log
    assert node.log().startswith("restored nothing at 0\n"), "there was no mark"

    other = again(node)
    # What is no set comes back as it is.
    service.put("mine/output/log.csv", b"1")
    assert other.do("node", spec_of(other, "cat output/checkpoint-20/model.bin")).returncode == 0
    root = other.root / "output/checkpoint-20"
    assert other.log().splitlines() == [f"restored {root} at 20", "checkpoint-20", "log.csv", "weights 20"]
    assert "checkpoint checkpoint-20 restored: 2 files" in other.node_log


def test_a_set_that_was_changed_in_the_container_is_passed_over(node: Node, service: BlobService) -> None:
    node.do("node", spec_of(node, "train 10; train 20"))
    service.put("mine/output/checkpoint-20/model.bin", b"weights 99\n")
    other = again(node)
    assert other.do("node", spec_of(other, "true")).returncode == 0
    assert f"restored {other.root}/output/checkpoint-10 at 10" in other.log()
    assert "checkpoint-20 is passed over: mine/output/checkpoint-20/model.bin has other content" in other.node_log
    assert not (other.root / "output/checkpoint-20").exists()
    service.put("mine/output/checkpoint-10/model.bin", b"weights 99\n")
    done = again(node, 2).do("node", spec_of(node, "true"))
    assert done.returncode == 72
    assert "2 checkpoints marked, and none is as its mark says" in done.stderr
    assert "restore: none" in done.stderr
    third = again(node, 3)
    assert third.do("node", spec_of(third, "true", replace(RULE, restore="none"))).returncode == 0
    assert third.log() == "restored nothing at 0\n"


def test_a_set_that_changes_while_it_is_brought_is_passed_over_and_leaves_nothing(
    node: Node, service: BlobService
) -> None:
    node.do("node", spec_of(node, "train 10; train 20"))
    # The service lists what the mark says and sends something else.
    service.blobs["mine/output/checkpoint-20/model.bin"] = b"WEIGHTS 20\n"
    other = again(node)
    assert other.do("node", spec_of(other, "true"), "--keep-root", "always").returncode == 0
    assert f"restored {other.root}/output/checkpoint-10 at 10" in other.log()
    assert "checkpoint-20 is passed over" in other.node_log
    assert sorted(path.name for path in (other.root / "output").iterdir()) == ["checkpoint-10"]


def test_a_start_on_a_node_that_has_the_files_of_a_killed_one_looks_at_its_checkpoint_again(
    node: Node, service: BlobService
) -> None:
    # Prepared, and killed after it had trained: nothing was cleaned up.
    spec = spec_of(node, "true")
    assert node.do("prepare", spec).returncode == 0
    line = "train 10; train 20; echo cut > output/checkpoint-20/model.bin; touch output/checkpoint-20/extra; "
    line += "train 90; train 100; rm output/checkpoint-100/trainer_state.json"
    other = Node(node.folder.parent / "first", service)
    assert other.do("node", spec_of(other, "train 10; train 20")).returncode == 0
    subprocess.run(["bash", "-c", TRAIN + line], cwd=node.root, check=True, stdout=subprocess.DEVNULL)
    node.env = {"SLURM_RESTART_COUNT": "1"}
    kept = (node.root / "output/checkpoint-10/model.bin").stat()
    assert node.do("node", spec_of(node, "ls output/checkpoint-20; cat output/checkpoint-20/model.bin")).returncode == 0
    assert node.log().splitlines()[0] == f"restored {node.root}/output/checkpoint-20 at 20"
    assert node.log().splitlines()[-3:] == ["model.bin", "trainer_state.json", "weights 20"] and kept.st_size
    assert "only the checkpoint is looked at again" in node.node_log
    moved = dict(re.findall(r"/output/(\S+): \d files? moved to (\S+): ", node.node_log))
    assert sorted(moved) == ["checkpoint-100", "checkpoint-20"]
    # Its program may take the last name in the folder; 90 is whole by what the Trainer writes last.
    assert node.log().splitlines()[1:4] == ["checkpoint-10", "checkpoint-20", "checkpoint-90"]
    assert "checkpoint-90" in marked(service) and "checkpoint-100" not in marked(service)
    for name, file, text in (("checkpoint-100", "model.bin", b"weights 100\n"), ("checkpoint-20", "extra", b"")):
        stored = f"mine/output/{Path(moved[name]).relative_to(node.root / 'output')}/{file}"
        assert service.blobs[stored] == text, "nothing is lost"
    # It is no set, and comes back nowhere.
    third = again(node, 2)
    assert third.do("node", spec_of(third, "ls -A output"), "--keep-root", "always").returncode == 0
    assert third.log().splitlines()[1:] == ["checkpoint-90", "checkpoint-90"]


def test_in_the_users_own_folder_what_is_not_the_set_is_moved_aside(node: Node) -> None:
    node.do("node", spec_of(node, "train 10"))
    here = waiting(node, 0, nodes=1, code=None)
    left = here.job.root / "output/checkpoint-10"
    left.mkdir(parents=True)
    (left / "model.bin").write_text("half")
    (left / "notes.txt").write_text("mine")
    here.restore()
    assert (left / "model.bin").read_text() == "weights 10\n" and not (left / "notes.txt").exists()
    moved = re.search(r"checkpoint-10: 2 files moved to (\S+): the checkpoint that comes is another one", here.log)
    assert moved and (Path(moved[1]) / "notes.txt").read_text() == "mine"
    assert (Path(moved[1]) / "model.bin").read_text() == "half"
    # It is whole then, and stays, whatever is beside it; a later one may be another job's, which is writing it.
    (left / "notes.txt").write_text("mine")
    later = left.with_name("checkpoint-11")
    later.mkdir()
    (later / "model.bin").write_text("half")
    here.restore()
    assert (left / "notes.txt").exists() and "is here already, and complete" in here.log
    assert "1 checkpoint of an earlier start, such as checkpoint-11: still here, perhaps half; start from" in here.log
    assert (later / "model.bin").exists()


def test_a_file_that_a_killed_program_left_on_the_node_gets_no_mark(node: Node, service: BlobService) -> None:
    rule = CheckpointRule("*.ckpt", settle_seconds=0)
    assert node.do("prepare", spec_of(node, "true", rule)).returncode == 0
    (node.root / "output/half.ckpt").write_text("ha")
    node.env = {"SLURM_RESTART_COUNT": "1"}
    spec = spec_of(node, "echo whole > output/next.ckpt; sleep 2; exit 3", rule)
    assert node.do("node", spec, "--sync-seconds", "0.3").returncode == 3
    assert list(marked(service)) == ["next.ckpt"]
    (stored,) = (name for name in service.blobs if name.endswith("half.ckpt"))
    assert stored.startswith("mine/output/.set-aside/") and service.blobs[stored] == b"ha", "nothing is lost"


def test_another_jobs_sets_are_not_taken_unless_it_is_of_their_lineage(node: Node) -> None:
    node.do("node", spec_of(node, "train 10"))
    stranger = again(node, 1)
    stranger.do("node", spec_of(stranger, "true", run_id="me_2_0badcafe"))
    assert stranger.log() == "restored nothing at 0\n"
    heir = again(node, 2)
    heir.do("node", spec_of(heir, "true", run_id="me_2_0badcafe", options={"lineage": "me_1_0badcafe"}))
    assert "at 10" in heir.log()


def test_a_resubmit_finds_the_sets_of_the_run_before_in_a_folder_of_its_own(node: Node, service: BlobService) -> None:
    own = {"own_output": "output"}
    line = (
        'cd "$BLOBSYNC_OUTPUT"; mkdir checkpoint-5; echo w > checkpoint-5/model.bin; echo {} >'
        " checkpoint-5/trainer_state.json"
    )
    node.do("node", spec_of(node, line, options=own))
    (mark,) = marked(service).values()
    assert (mark["set"], mark["stored"]) == ("checkpoint-5", "me_1_0badcafe/checkpoint-5")
    heir = again(node)
    options = {**own, "lineage": "me_1_0badcafe"}
    assert heir.do("node", spec_of(heir, "true", run_id="me_2_0badcafe", options=options)).returncode == 0
    assert f"restored {heir.root}/output/me_2_0badcafe/checkpoint-5 at 5" in heir.log()


def test_the_pointer_beside_a_restored_set_names_it(node: Node, service: BlobService) -> None:
    rule = CheckpointRule("global_step*", settle_seconds=0)
    line = "mkdir output/global_step5; echo w > output/global_step5/w.pt; echo -n global_step5 > output/latest"
    node.do("node", spec_of(node, line, rule))
    service.put("mine/output/latest", b"global_step9")
    other = again(node)
    other.do("node", spec_of(other, "cat output/latest", rule))
    assert other.log().endswith("global_step5")


def test_versions_of_an_overwritten_file_come_back_under_its_name_alone(node: Node, service: BlobService) -> None:
    rule = CheckpointRule("last.ckpt", settle_seconds=0)
    assert node.do("node", spec_of(node, "echo one > output/last.ckpt", rule)).returncode == 0
    other = again(node)
    assert other.do("node", spec_of(other, "echo two > output/last.ckpt", rule)).returncode == 0
    assert len(marked(service)) == 2 and service.blobs["mine/output/last.ckpt"] == b"one\n"
    third = again(node, 2)
    assert third.do("node", spec_of(third, "cat output/last.ckpt", rule)).returncode == 0
    assert third.log().splitlines()[1:] == ["last.ckpt", "two"]


def test_a_mark_of_a_folder_that_is_no_set_removes_nothing(node: Node, service: BlobService) -> None:
    node.do("node", spec_of(node, "train 10"))
    (name,) = [name for name in service.blobs if name.startswith(MARKS)]
    forged = {**content(service.blobs[name]), "set": "results", "stored": "results", "step": 99}
    service.put(f"{MARKS}/results.json", json.dumps(forged).encode())
    service.put("mine/output/results/model.bin", b"weights 10\n")
    service.put("mine/output/results/trainer_state.json", b"{}\n")
    other = again(node)
    assert other.do("node", spec_of(other, "true")).returncode == 0
    assert " at 10" in other.log()


def test_a_program_says_that_its_set_is_complete(node: Node, service: BlobService) -> None:
    rule = CheckpointRule("mine-*", settle_seconds=10_000)
    say = f"{node.python} -c 'import blobsync; blobsync.mark_complete(\"output/mine-1\")'"
    line = f"mkdir output/mine-1 output/mine-2; echo w | tee output/mine-1/w > output/mine-2/w; {say}; exit 5"
    assert node.do("node", spec_of(node, line, rule)).returncode == 5
    assert list(marked(service)) == ["mine-1"]


def test_in_the_foreground_of_a_workstation_nobody_listens(tmp_path: Path) -> None:
    arguments = parse_arguments(["here", "--job", str(tmp_path / "job.json"), "--run-dir", str(tmp_path)])
    folders = (FolderLink("output", "https://a/b", "out", "upload", checkpoints=RULE),)
    job = NodeJob(make_spec("true", folders=folders), {}, arguments, {"BLOBSYNC_SCRATCH": str(tmp_path)}, 0)
    assert not {"BLOBSYNC_COMPLETE", "BLOBSYNC_RESTORED"} & job.user_environment(Ranks(0, 0, 1, 1, 0)).keys()


def test_a_file_of_a_program_that_failed_is_not_taken_for_complete(node: Node, service: BlobService) -> None:
    rule = CheckpointRule("*.ckpt", settle_seconds=10_000)
    assert node.do("node", spec_of(node, "echo half > output/last.ckpt; exit 9", rule)).returncode == 9
    assert marked(service) == {} and "mine/output/last.ckpt" in service.blobs
    other = again(node)
    assert other.do("node", spec_of(other, "echo whole > output/last.ckpt", rule)).returncode == 0
    assert list(marked(service)) == ["last.ckpt"], "it has ended well: it wanted the file so"


@pytest.mark.parametrize("code", [0, 1])
def test_a_node_whose_other_process_failed_did_not_end_well(node: Node, service: BlobService, code: int) -> None:
    spec = spec_of(node, f"[ $RANK = 0 ] || exit {code}; echo w > output/a.ckpt", CheckpointRule("*.ckpt"))
    spec = replace(spec, procs_per_node=2)
    node.do("prepare", spec)
    running = []
    for rank in ("1", "0"):
        node.env |= {"RANK": rank, "LOCAL_RANK": rank}
        running.append(node.start("exec", spec, "--log"))
    assert [each.wait(PATIENCE) for each in running] == [code, 0]
    assert list(marked(service)) == ([] if code else ["a.ckpt"])


def test_a_set_goes_up_no_faster_than_it_may_and_heartbeats_say_how_far_behind_it_is(node: Node) -> None:
    line = (
        "mkdir output/checkpoint-1; head -c 400000 /dev/urandom > output/checkpoint-1/model.bin;"
        " head -c 400000 /dev/urandom > output/checkpoint-1/optimizer.bin;"
        " echo '{}' > output/checkpoint-1/trainer_state.json; sleep 4"
    )
    assert node.do("node", spec_of(node, line, replace(RULE, cap_mbps=1)), "--sync-seconds", "0.3").returncode == 0
    beats, marked_at = node.node_log.splitlines(), "checkpoint-1 is complete in the container"
    before = beats[: next(number for number, beat in enumerate(beats) if marked_at in beat)]
    assert [beat for beat in before if "heartbeat" in beat and " s behind" in beat], node.node_log
    (seconds,) = re.findall(r"complete in the container: 3 files, 800,003 bytes in ([0-9.]+) s", node.node_log)
    # At 125 kB a second the second file has to wait for the first one's time.
    assert float(seconds) >= 2


def test_the_heartbeat_says_how_far_behind_the_container_is(tmp_path: Path) -> None:
    arguments = parse_arguments(["node", "--job", str(tmp_path / "job.json"), "--run-dir", str(tmp_path)])
    job = NodeJob(make_spec("true"), {}, arguments, {"BLOBSYNC_SCRATCH": str(tmp_path)}, 0)
    for behind in (None, 41.7):
        job.say(heartbeat(job, behind))
    lines = job.node_log.read_text().splitlines()
    assert lines[1].endswith(", checkpoint 42 s behind")
    assert [each.behind for each in node_use(0, lines).samples] == [None, 42]


def replace_node(node: Node, number: int, env: dict[str, str]) -> Node:
    return Node(node.folder.parent / f"first{number}", node.service, env=env)


MASTER = {"MASTER_ADDR": "127.0.0.1"}
SHARDS = (
    'save() { mkdir -p output/step-$1; echo shard $NODE_RANK of $1 > "output/step-$1/__${NODE_RANK}_0.distcp";'
    ' if [ "$NODE_RANK" = 0 ]; then echo m > output/step-$1/.metadata; fi; }; '
)


SHARES = {".metadata": 0, "__0_0.distcp": 0, "__1_0.distcp": 1}


def two_starts(nodes: Sequence[Node], line: str, rule: CheckpointRule) -> tuple[int, int]:
    """Start a job on both nodes, first on the one that waits for the other; returns their exit codes."""
    running = []
    for number, each in reversed([*enumerate(nodes)]):
        spec = spec_of(each, line, rule, nodes=2, platform="slurm")
        running.append(each.start("node", spec, "--node-rank", str(number), "--sync-seconds", "0.3"))
    second, first = (each.wait(PATIENCE) for each in running)
    return first, second


@pytest.mark.parametrize("broken", ["step-7/__0_0.distcp", "step-7/__1_0.distcp"])
def test_a_set_that_one_of_two_nodes_does_not_get_as_its_mark_says_is_passed_over_by_both(
    node: Node, service: BlobService, broken: str
) -> None:
    rule = CheckpointRule("step-*", settle_seconds=0, restore="own")
    nodes = [replace_node(node, number, MASTER) for number in (0, 1)]
    assert two_starts(nodes, f"{SHARDS} save 5; save 7; sleep 2", rule) == (0, 0)
    assert sorted(marked(service)) == ["step-5", "step-7"]
    mark = marked(service)["step-5"]
    assert {each["path"]: each["node"] for each in mark["files"]} == SHARES and mark["nodes"] == 2
    # Listed as the mark says, and sent as something else: only what arrived shows it.
    body = service.blobs[f"mine/output/{broken}"]
    service.blobs[f"mine/output/{broken}"] = body.upper()
    later = [again(node, 2 + number, **MASTER, BLOBSYNC_ATTEMPT="1") for number in (0, 1)]
    assert two_starts(later, "ls -A output/step-*; cat output/step-*/*.distcp", rule) == (0, 0)
    for number, each in enumerate(later):
        assert f"restored {each.root}/output/step-5 at 5" in each.log(number)
        own = [name for name, of in SHARES.items() if of == number]
        assert each.log(number).splitlines()[1:] == ["step-5", *own, f"shard {number} of 5"], "and no other one's"
    logs = [(each.run / f"system_logs/node_{number}.txt").read_text() for number, each in enumerate(later)]
    at = 0 if "__0" in broken else 1
    assert re.search(rf"step-7 is passed over: .*{broken} arrived with a different MD5", logs[at])
    if at:
        assert "step-7 is passed over: node 1 does not have it as its mark says" in logs[0]


@dataclass
class Waits:
    """A node of a job with two, which starts alone, by a clock of its own."""

    job: NodeJob
    places: JobStores
    slept: float = 0.0

    def sleep(self, seconds: float) -> None:
        # Fewer requests.
        self.slept += 20 * seconds

    def restore(self, sleep: Callable[[float], None] | None = None) -> None:
        transfers = NodeTransfers(self.job)
        try:
            restore_checkpoint(
                self.job,
                self.places,
                transfers,
                self.job.folders("upload")[0],
                sleep=sleep or self.sleep,
                clock=lambda: self.slept,
            )
        finally:
            transfers.close()

    @property
    def log(self) -> str:
        return self.job.node_log.read_text()


def waiting(node: Node, rank: int, rule: CheckpointRule = RULE, nodes: int = 2, **changes: Any) -> Waits:
    spec = replace(spec_of(node, "true", rule, nodes=nodes, platform="slurm"), **changes)
    folder = node.folder.parent / f"waits{rank}"
    words = ["node", "--job", str(folder / "job.json"), "--run-dir", str(folder), "--root", str(folder / "root")]
    sas, environ = {node.service.url: node.sas}, {"BLOBSYNC_SCRATCH": str(folder)}
    secrets = {name: Secret(value) for name, value in sent(spec).items()}
    return Waits(NodeJob(spec, secrets, parse_arguments(words), environ, rank), JobStores(sas, environ))


def test_what_a_node_of_an_elastic_job_said_at_its_end_counts_no_more_when_it_is_back(node: Node) -> None:
    back = waiting(node, 1, min_nodes=1, max_nodes=2)
    store = back.places.container(node.service.url)
    notes = Notes(store, "mine/output", "me_1_0badcafe", back.job.say, keys)
    over = Over("me_1_0badcafe", "any", well=True, sets=(), whole=())
    notes.say(over, "me_1_0badcafe", 1)
    assert notes.ended("me_1_0badcafe", "any", 1) == over
    back.restore()
    assert notes.ended("me_1_0badcafe", "any", 1) is None


def test_nodes_wait_ten_minutes_for_each_other_and_one_that_is_late_takes_what_the_others_have(
    node: Node, service: BlobService
) -> None:
    node.do("node", spec_of(node, "train 10"))
    second = waiting(node, 1)
    with pytest.raises(NotReadyError, match="node 0 did not say within 600 s which checkpoint all nodes take"):
        second.restore()
    assert 600 <= second.slept <= 640 and not second.job.restored.exists()
    first = waiting(node, 0)
    first.restore()
    assert 600 <= first.slept <= 640
    assert "starting, although these nodes did not say that they have the checkpoint: 1" in first.log
    late = waiting(node, 1)
    late.restore()
    for each in (first, late):
        assert json.loads(each.job.restored.read_text())["stored"] == "checkpoint-10"
    assert late.slept == 0
    # What was said for an earlier start counts no more.
    late.job.environ = {**late.job.environ, "BLOBSYNC_ATTEMPT": "1"}
    with pytest.raises(NotReadyError, match="did not say"):
        late.restore()
    # A node that does not get it starts from nothing else.
    shutil.rmtree(late.job.root)
    service.blobs["mine/output/checkpoint-10/model.bin"] = b"WEIGHTS 10\n"
    with pytest.raises(NotReadyError, match=r"checkpoint-10, which all nodes take: .* arrived with a different MD5"):
        waiting(node, 1).restore()
    # Nor does any where no set is as its mark says.
    service.put("mine/output/checkpoint-10/model.bin", b"other")
    for rank in (0, 1):
        again_here = waiting(node, rank)
        again_here.job.environ = {**again_here.job.environ, "BLOBSYNC_ATTEMPT": "2"}
        with pytest.raises(NotReadyError, match="1 checkpoint marked, and none is as its mark says"):
            again_here.restore()


def test_what_anybody_else_says_in_node_0s_name_chooses_no_lineage(node: Node, service: BlobService) -> None:
    node.do("node", spec_of(node, "train 10", run_id="other_1_0badcafe"))
    said = {"attempt": "0", "number": 0, "stored": "checkpoint-10", "lineage": "other_1_0badcafe", "agreed": True}
    service.put(f"{MARKS}/restore/me_1_0badcafe.json", json.dumps(said).encode())
    second = waiting(node, 1)
    with pytest.raises(NotReadyError, match="did not say"):
        second.restore()
    assert second.log.count("restore/me_1_0badcafe.json is left alone: it has no seal of this lineage") == 1
