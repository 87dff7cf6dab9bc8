"""Records of jobs in the container: what others see of a job, and what a forged record cannot do."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import (
    AmbiguousJobError,
    BlobsyncError,
    JobNotFoundError,
    StorageError,
    UntrustedCodeError,
    UsageError,
)
from blobsync.base.redaction import register_secret
from blobsync.cli.jobs import job_data, job_details, job_table
from blobsync.code.project_code import CodeProject
from blobsync.config.model import Cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.record import JobRecord
from blobsync.jobs.service import JobService
from blobsync.jobs.shared_records import FOLDER, recalled
from blobsync.jobs.submit import hand_over, resubmit
from blobsync.jobspec.code_choice import CodeChoice
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import CodeRef, State
from blobsync.jobspec.sweep import sweep
from tests.fakes.backend import FakeBackend
from tests.fakes.store import MemoryStore, Request
from tests.unit.project_files import ProjectFiles

URL = "https://acct.blob.core.windows.net/cont"
PLACE = f"{FOLDER}/mine%2Foutput.logs"
CODE = CodeRef(URL, "code.zip.d/x.zip", "d" * 64)
FILE = """\
platform: local
output: per_job
env: {EPOCHS: 3, HF_TOKEN: hf_abcdef}
config_param:
  output_folder: {azure_blob_config_file: aux_data/configs/acct.yaml, path: mine/output, mode: upload}
"""


class Clone:
    """One user's clone of the project; all clones share the container."""

    def __init__(self, root: Path, user: str, box: MemoryStore, file: str = FILE) -> None:
        ProjectFiles(root).cluster(file, "uni")
        self.notes: list[str] = []
        self.backend = FakeBackend()
        self.environ = {"HOME": str(root / "home"), "USER": user}
        backends, stores = {"uni": self.backend}, {URL: box}
        self.context = JobContext(
            root, self.environ, backends=backends, stores=stores, note=self.notes.append, sleep=lambda _: None
        )
        self.jobs = JobService(self.context, self._no_project)

    def _no_project(self, cluster: Cluster) -> CodeProject:
        raise AssertionError("no code is looked for")

    def submit(self, *argv: str, at: float = 1_764_000_000, code: CodeRef | None = CODE, **asked: Any) -> JobRecord:
        cluster = self.context.cluster("uni")
        run_id = f"{self.environ['USER']}_{int(at)}_{hashlib.md5(repr((argv, at)).encode()).hexdigest()[:8]}"
        spec = describe(cluster, SubmitRequest(argv or ("sleep", "9"), **asked), run_id, code)
        return hand_over(self.context, cluster, replace(spec, node_archive=None)).record


@pytest.fixture
def box() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def ann(tmp_path: Path, box: MemoryStore) -> Clone:
    return Clone(tmp_path / "ann", "ann", box)


@pytest.fixture
def bob(tmp_path: Path, box: MemoryStore) -> Clone:
    return Clone(tmp_path / "bob", "bob", box)


def put(box: MemoryStore, name: str, body: bytes) -> None:
    box.put(name, body, md5=hashlib.md5(body).digest())


def record_of(box: MemoryStore, job: JobRecord) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The blob, and the two lines."""
    (name,) = (name for name in box.blobs if name.endswith(f"_{job.run_id}.json"))
    state, spec = box.blobs[name].body.decode().splitlines()
    return name, json.loads(state), json.loads(spec)


def forge(box: MemoryStore, name: str, state: object, spec: object) -> None:
    put(box, name, f"{json.dumps(state)}\n{json.dumps(spec)}\n".encode())


def yes(lines: Sequence[str]) -> None:
    """Agrees."""


# -- what is written --------------------------------------------------------------------------------------------------


def test_a_record_is_written_by_submit_and_at_a_look_that_sees_a_change(ann: Clone, box: MemoryStore) -> None:
    job = ann.submit()
    name, state, _ = record_of(box, job)
    assert name == f"{PLACE}/{9_999_999_999 - 1_764_000_000}_{job.run_id}.json" and state["state"] == "Queued"

    def writes() -> int:
        return len([one for one in box.requests if one.operation == "put"])

    ann.jobs.get(job.run_id)
    assert record_of(box, job)[1]["state"] == "Running" and writes() == 2
    ann.jobs.get(job.run_id)
    assert writes() == 2
    ann.jobs.cancel(job.run_id)
    assert record_of(box, job)[1]["state"] == "Canceled" and writes() == 3


def test_a_record_that_could_not_be_written_is_named_and_written_later(ann: Clone, box: MemoryStore) -> None:
    def away(request: Request) -> None:
        raise StorageError("the network is down")

    box.before = away
    job = ann.submit()
    assert [note for note in ann.notes if f"do not see {job.run_id}" in note and "the network is down" in note]
    # One that does not answer is not asked for each job.
    other = ann.submit("sleep", "8", at=1_764_000_001)
    for each in (job, other):
        ann.context.history.note_shared(each.run_id, State.QUEUED, "x")
    tries = len(box.requests)
    ann.jobs.refresh([job.run_id, other.run_id])
    assert "do not see 2 jobs" in ann.notes[-1] and len(box.requests) == tries + 1
    box.before = lambda _: None
    ann.jobs.get(job.run_id)
    assert not box.blobs
    # Not with each look; after ten minutes.
    with ann.context.history._file.writing() as database:
        database.execute("update shared_records set tried=?", (time.time() - 601,))
    ann.jobs.get(job.run_id)
    assert record_of(box, job)[1]["state"] == "Running"


def test_a_record_has_no_secret_no_value_of_a_variable_and_no_path_of_a_disk(ann: Clone, box: MemoryStore) -> None:
    register_secret("pa55-of-this-process")
    words = ("--hf-token", "hf_one", "--api-key=two", "-x", "pa55-of-this-process", f"{URL}/b?sv=1&sig=three")
    job = ann.submit("python", "t.py", *words, "--tokenizer", "bert", "--max-tokens", "5")
    line = ann.submit("export WANDB_API_KEY=four; ./run --password 'five six' --seed 7", at=1_764_000_001)
    tasks = sweep(["lr=1,2", "token=seven,eight"])
    swept = ann.submit("run", tasks=tasks, at=1_764_000_002)
    bodies = b"".join(one.body for one in box.blobs.values()).decode()
    secrets = ("hf_one", "two", "pa55-of", "three", "four", "five", "six", "seven", "eight", "hf_abcdef")
    assert not [each for each in (*secrets, str(ann.context.root)) if each in bodies]
    spec = record_of(box, job)[2]
    assert spec["argv"][2:] == [
        *("--hf-token", "***", "--api-key=***", "-x", "***", f"{URL}/b?***"),
        *("--tokenizer", "bert", "--max-tokens", "5"),
    ]
    assert record_of(box, line)[2]["argv"] == ["export WANDB_API_KEY=***; ./run --password *** --seed 7"]
    assert record_of(box, swept)[2]["tasks"]["rows"] == [["1", "***"], ["1", "***"], ["2", "***"], ["2", "***"]]
    assert (spec["env"], spec["secret_env"], spec["setup"]) == ({}, ["EPOCHS", "HF_TOKEN"], [])


# -- what others see --------------------------------------------------------------------------------------------------


def test_another_clone_lists_finds_and_follows_a_job(ann: Clone, bob: Clone) -> None:
    job = ann.submit("sleep", "9", name="big", tasks=sweep(["lr=1,2"]))
    own = bob.submit(at=1_764_000_009)
    assert [one.run_id for one in bob.jobs.list()] == [own.run_id]
    listed = bob.jobs.list(all_users=True)
    assert [one.run_id for one in listed] == [own.run_id, job.run_id] and not bob.notes
    for wanted in (job.run_id, job.run_id[-8:], job.run_id[-5:]):
        seen = bob.jobs.find(wanted)
        assert (seen.by, seen.cluster, seen.spec.name) == ("ann", "uni", "big")
    assert [dict(task.parameters) for task in seen.tasks] == [{"lr": "1"}, {"lr": "2"}]
    shown = "\n".join([*job_table(listed.records), *job_details(seen, columns=0)])
    assert "ann, from the container" in shown and shown.count("BY") == 1
    assert (job_data(seen)["by"], job_data(seen)["status_confirmed"], job_data(own)["by"]) == ("ann", False, None)
    assert bob.jobs.get(job.run_id).state is State.QUEUED
    ann.jobs.cancel(job.run_id)
    # Whoever waits looks anew.
    assert bob.jobs.wait(seen).state is State.CANCELED
    assert bob.context.history.page() == (bob.context.history.find(own.run_id),)


def test_a_service_with_a_list_of_its_own_is_named(ann: Clone, bob: Clone) -> None:
    job = ann.submit()
    ProjectFiles(bob.context.root).cluster("platform: aml\ncompute_target: gpus\n", "azure")
    assert [one.run_id for one in bob.jobs.list(all_users=True)] == [job.run_id]
    assert bob.notes == ["jobs of others on azure (aml) are not among these: blobsync q -c azure"]
    assert bob.jobs.find(job.run_id).by == "ann"


def test_a_job_without_a_gpu_has_none_elsewhere(ann: Clone, bob: Clone, box: MemoryStore) -> None:
    given = replace(ann.submit(num_gpu=2).spec, run_id="ann_1764000001_0badcafe", options={"on_cpu": True})
    job = hand_over(ann.context, ann.context.cluster("uni"), given).record
    name, state, spec = record_of(box, job)
    assert (job.spec.gpus_per_node, job.spec.gpus, bob.jobs.find(job.run_id).spec.gpus) == (2, 0, 0)
    forge(box, name, state, spec | {"options": {"on_cpu": "yes"}})
    assert bob.jobs.find(job.run_id).spec.options == {"recalled": True}


def test_a_listing_has_the_newest_and_costs_no_more(ann: Clone, bob: Clone, box: MemoryStore) -> None:
    jobs = [ann.submit("sleep", str(at), at=1_764_000_000 + at) for at in range(9)]
    box.requests.clear()
    assert [one.run_id for one in bob.jobs.list(limit=3, all_users=True)] == [one.run_id for one in jobs[:5:-1]]
    assert [(one.operation, one.size) for one in box.requests if one.operation != "get"] == [("list first", 3)]
    assert len(box.requests) == 4
    # A whole id needs no listing; a part of it is looked for among the newest.
    box.requests.clear()
    assert bob.jobs.find(jobs[0].run_id).by == "ann"
    assert [one.operation for one in box.requests] == ["get"]
    with pytest.raises(AmbiguousJobError):
        Clone(bob.context.root.parent / "cy", "cy", box).jobs.find(_common_end(ann, jobs))


def _common_end(ann: Clone, jobs: Sequence[JobRecord]) -> str:
    """A part of an id that two jobs end with."""
    end = jobs[0].run_id[-6:]
    for at in (1, 2):
        spec = replace(jobs[0].spec, run_id=f"ann_176400010{at}_{at}{at}{end}")
        hand_over(ann.context, ann.context.cluster("uni"), spec)
    return end


def test_what_is_done_to_a_job_of_somebody_else_is_refused_in_one_sentence(ann: Clone, bob: Clone) -> None:
    job = ann.submit("sleep", "9", elastic="1:3")
    swept = ann.submit("sleep", "8", tasks=sweep(["lr=1,2"]))
    acts: list[Callable[[], object]] = [
        lambda: bob.jobs.cancel(job.run_id),
        lambda: bob.jobs.cancel_tasks(swept.run_id, [1]),
        lambda: bob.jobs.scale(job.run_id, 2),
        lambda: bob.jobs.ssh(job.run_id),
        lambda: next(bob.jobs.watch(job.run_id)),
    ]
    for act in acts:
        with pytest.raises(JobNotFoundError, match=r"this project has no record of ann_.*by ann, from the container"):
            act()
    assert [each.code for each in bob.jobs.cancel_all([job.run_id]).errors] == ["job_not_found"]
    assert not bob.backend.asked and not ann.backend.jobs[job.run_id].state.is_final
    # Neither is anything forgotten of it: nothing of it is in the history.
    bob.jobs.refresh([job.run_id])
    assert not bob.context.history.page()


# -- submitting again -------------------------------------------------------------------------------------------------


def test_a_job_of_somebody_else_runs_again_with_the_callers_own_files(ann: Clone, bob: Clone) -> None:
    bob.context.root.joinpath("aux_data/aml/uni.yaml").write_text(FILE.replace("EPOCHS: 3", "EPOCHS: 44"))
    job = ann.submit("sleep", "9", "a b")
    asked: list[str] = []
    old = bob.jobs.find(job.run_id)
    new = resubmit(bob.context, old, choose_code=lambda _: CodeChoice(CODE), agree=asked.extend).record
    assert (new.spec.argv, new.spec.env["EPOCHS"]) == (("sleep", "9", "a b"), "44")
    assert (new.successor_of, new.run_id in bob.backend.jobs, new.run_id.startswith("bob_")) == (job.run_id, True, True)
    assert bob.backend.secrets[new.run_id].env == {"HF_TOKEN": "hf_abcdef"}
    text = "\n".join(asked)
    for each in ("by ann, from the container", "command: sleep 9 'a b'", f"upload {URL}/mine/output", "d" * 64):
        assert each in text
    assert not ann.backend.jobs[job.run_id].state.is_final


def test_a_job_of_somebody_else_runs_again_only_if_the_user_agrees(ann: Clone, bob: Clone) -> None:
    job = ann.submit("python", "t.py\ncode: trusted")
    with pytest.raises(UntrustedCodeError, match="was not submitted from here"):
        bob.jobs.resubmit(job.run_id, agree=yes)
    old = bob.jobs.find(job.run_id)

    def again(agree: Callable[[Sequence[str]], None] | None) -> None:
        resubmit(bob.context, old, choose_code=lambda _: CodeChoice(CODE), agree=agree)

    with pytest.raises(UsageError, match="see first what it runs"):
        again(None)

    def no(lines: Sequence[str]) -> None:
        assert not [line for line in lines if "\n" in line]
        raise UsageError("not confirmed")

    with pytest.raises(UsageError, match="not confirmed"):
        again(no)
    assert not bob.backend.jobs


def test_the_parameters_of_a_sweep_are_shown_too(ann: Clone, bob: Clone) -> None:
    tasks = sweep({"what": ["ls", "$(rm -rf ~); `x`", "ls"], "seed": [1]})
    job = ann.submit("bash", "-c", "{what}", "{seed}", tasks=tasks)
    asked: list[str] = []
    old = bob.jobs.find(job.run_id)
    new = resubmit(bob.context, old, choose_code=lambda _: CodeChoice(CODE), agree=asked.extend, tasks=[1]).record
    assert "  parameter what: '$(rm -rf ~); `x`'" in asked and "  parameter seed: 1" in asked
    assert new.spec.tasks and new.spec.tasks.numbers == (1,)
    resubmit(bob.context, old, choose_code=lambda _: CodeChoice(CODE), agree=asked.extend)
    assert "  parameter what: ls, '$(rm -rf ~); `x`'" in asked


def test_what_was_hidden_or_is_not_known_is_named(ann: Clone, bob: Clone) -> None:
    job = ann.submit("run", "--token", "abc", tasks=sweep(["secret=1,2"]))
    with pytest.raises(UsageError, match="word 3 of its command, the parameter secret may be a secret"):
        resubmit(bob.context, bob.jobs.find(job.run_id), choose_code=lambda _: CodeChoice(CODE), agree=yes)
    plain = ann.submit("run")
    bob.context.root.joinpath("aux_data/aml/uni.yaml").write_text(FILE.replace("EPOCHS: 3, ", ""))
    with pytest.raises(UsageError, match="variables whose values only ann has: EPOCHS") as refused:
        resubmit(bob.context, bob.jobs.find(plain.run_id), choose_code=lambda _: CodeChoice(CODE), agree=yes)
    assert "env: in" in (refused.value.hint or "")


def test_outputs_on_a_disk_of_somebody_else_are_not_looked_for_here(ann: Clone, bob: Clone, box: MemoryStore) -> None:
    job = ann.submit()
    name, state, spec = record_of(box, job)
    spec["folders"][0] |= {"mode": "link", "source": "/etc"}
    forge(box, name, state, spec)
    with pytest.raises(UsageError, match="on the disk where it ran"):
        bob.jobs.outputs(job.run_id)
    spec["folders"][0] |= {"mode": "upload", "container": "https://evil.blob.core.windows.net/cont"}
    forge(box, name, state, spec)
    with pytest.raises(UsageError, match=r"which neither .* opens"):
        bob.jobs.outputs(job.run_id)


# -- forged records ---------------------------------------------------------------------------------------------------

STATES: dict[str, Callable[[dict[str, Any]], object]] = {
    "another version": lambda state: state | {"blobsync_job": 2},
    "no state": lambda state: state | {"state": "Sold"},
    "an endless time": lambda state: state | {"ended": 1e300},
    "a text for a time": lambda state: state | {"started": "1"},
    "a huge exit code": lambda state: state | {"exit_code": 10**30},
    "a key of ours": lambda state: state | {"nodes": ["n"]},
    "when it got its SAS": lambda state: state | {"granted": 1.0},
    "a reason that drives a terminal": lambda state: state | {"reason": "\x1b[2J"},
    "a reason in two lines": lambda state: state | {"reason": "fine\nCompleted"},
    "half a character": lambda state: state | {"reason": "\ud800"},
    "a job before it that is a path": lambda state: state | {"successor_of": "../x"},
    "tasks that it has not": lambda state: state | {"tasks": [[7, "Running"]]},
    "a task twice": lambda state: state | {"tasks": [[0, "Running"], [0, "Failed"]]},
    "tasks that are none": lambda state: state | {"tasks": [7]},
    "a list": lambda state: [state],
}
SPECS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another job's id": lambda spec: spec | {"run_id": "eve_1764000000_00000000"},
    "an id that is a path": lambda spec: spec | {"run_id": "../../x"},
    "no command": lambda spec: spec | {"argv": []},
    "a command without end": lambda spec: spec | {"argv": ["x" * 70_000]},
    "a command that drives a terminal": lambda spec: spec | {"argv": ["\x1b]0;x\x07"]},
    "a command from right to left": lambda spec: spec | {"argv": ["\u202e"]},
    "a name in two lines": lambda spec: spec | {"name": "a\nb"},
    "no node": lambda spec: spec | {"nodes": 0},
    "too many nodes": lambda spec: spec | {"nodes": 10**12},
    "a billion tasks": lambda spec: spec | {"tasks": {"count": 10**9, "parallel": 1}},
    "names without values": lambda spec: spec | {"tasks": {"count": 1, "parallel": 1, "names": ["a"]}},
    "fewer rows than tasks": lambda spec: (
        spec | {"tasks": {"count": 2, "parallel": 1, "names": ["a"], "rows": [["1"]]}}
    ),
    "a parameter that is no name": lambda spec: (
        spec | {"tasks": {"count": 1, "parallel": 1, "names": ["a;b"], "rows": [["1"]]}}
    ),
    "a folder outside": lambda spec: spec | {"folders": [spec["folders"][0] | {"name": "../.ssh"}]},
    "a path outside": lambda spec: spec | {"folders": [spec["folders"][0] | {"path": "a/../b"}]},
    "a container that is none": lambda spec: spec | {"folders": [spec["folders"][0] | {"container": "file:///etc"}]},
    "an output outside": lambda spec: spec | {"options": {"own_output": "../x"}},
    "a digest that is none": lambda spec: spec | {"code": spec["code"] | {"digest": "x;y"}},
    "a commit that is none": lambda spec: spec | {"code": spec["code"] | {"git_commit": "-x"}},
    "an unknown key": lambda spec: spec | {"run": "evil"},
    "a number": lambda spec: 7,
}


def test_the_gate_refuses_what_no_blobsync_writes(ann: Clone, box: MemoryStore) -> None:
    job, clusters = ann.submit(), [ann.context.cluster("uni")]
    _, state, spec = record_of(box, job)
    forged: dict[str, tuple[object, object]] = {what: (change(state), spec) for what, change in STATES.items()}
    forged |= {what: (state, change(spec)) for what, change in SPECS.items()}
    for what, lines in [("as it is", (state, spec)), *forged.items()]:
        body = "\n".join(map(json.dumps, lines)).encode()
        try:
            seen = recalled(body, job.run_id, clusters, 0.0)
        except (BlobsyncError, ValueError, TypeError, KeyError, AttributeError):
            assert what in forged
        else:
            assert what not in forged and seen.spec.argv == job.spec.argv


def test_a_forged_record_is_left_alone_and_named(ann: Clone, bob: Clone, box: MemoryStore) -> None:
    job, good = ann.submit(at=1_764_000_000), ann.submit("sleep", "1", at=1_764_000_009)
    name, state, spec = record_of(box, job)
    forge(box, name, state | {"reason": "\x1b[2J"}, spec)
    assert [one.run_id for one in bob.jobs.list(all_users=True)] == [good.run_id]
    assert [note for note in bob.notes if "left alone" in note and note.isprintable() and len(note) < 1000]
    with pytest.raises(JobNotFoundError, match="is not a job's record: it has control characters"):
        bob.jobs.find(job.run_id)
    forge(box, name, state | {"state": "\u202e\x1b" * 90_000, "\x1b[2J": 1}, spec)
    bob.jobs.list(all_users=True)
    assert bob.notes[-1].isprintable() and len(bob.notes[-1]) < 1000


def test_only_what_others_may_say_is_taken_of_a_record(ann: Clone, bob: Clone, box: MemoryStore) -> None:
    job = ann.submit()
    name, state, spec = record_of(box, job)
    evil = {"setup": ["evil"], "env": {"HF_TOKEN": "evil"}, "image": "evil", "logs": {"container": URL, "path": "x"}}
    options = {
        "command_prefix": "evil",
        "wrapper": ["evil"],
        "job_file": "evil",
        "in_place": "/",
        "outputs": {"a": "/"},
    }
    forge(box, name, state, {**spec, **evil, "cluster": "evil", "platform": "slurm", "options": options})
    seen = bob.jobs.find(job.run_id)
    assert "evil" not in seen.spec.to_json() and not seen.spec.env and not seen.ref.native_id and seen.home is None
    assert (seen.cluster, seen.spec.platform) == ("uni", "local")
    assert seen.spec.logs and (seen.spec.logs.container, seen.spec.logs.path) == (URL, f"mine/output.logs/{job.run_id}")
    new = resubmit(bob.context, seen, choose_code=lambda _: CodeChoice(CODE), agree=yes)
    assert "evil" not in new.record.spec.to_json()


@pytest.mark.parametrize(
    "body",
    [b"[" * 200_000, b"{}\n{}", b"\xff\xfe", b"", b'{"blobsync_job": 1}', b" " * (5 << 20)],
    ids=lambda b: str(len(b)),
)
def test_what_is_no_record_costs_little(ann: Clone, bob: Clone, box: MemoryStore, body: bytes) -> None:
    job = ann.submit()
    put(box, record_of(box, job)[0], body)
    before = time.process_time()
    assert not bob.jobs.list(all_users=True)
    assert [note for note in bob.notes if "1 blob that no blobsync wrote so" in note]
    assert time.process_time() - before < 2


def test_a_million_names_are_not_listed_and_a_name_has_its_own_time(ann: Clone, bob: Clone, box: MemoryStore) -> None:
    job = ann.submit()
    name, *_ = record_of(box, job)
    body = box.blobs[name].body
    # A record that claims to be newer than its id says, and names that are no record's.
    for forged in (f"0000000001_{job.run_id}.json", "0000000000_../x.json", "junk", f"sub/{name[len(PLACE) + 1 :]}"):
        put(box, f"{PLACE}/{forged}", body)
    box.requests.clear()
    assert [one.run_id for one in bob.jobs.list(limit=5, all_users=True)] == [job.run_id]
    assert [note for note in bob.notes if "4 blobs that no blobsync wrote so" in note]
    assert [one.size for one in box.requests if one.operation == "list first"] == [5]
    assert len([one for one in box.requests if one.operation == "get"]) == 1


def test_a_container_that_does_not_answer_is_named(bob: Clone, box: MemoryStore) -> None:
    def away(request: Request) -> None:
        raise StorageError("the network is down")

    box.before = away
    assert not bob.jobs.list(all_users=True)
    assert bob.notes == [f"jobs of others in {URL} are not shown: the network is down"]
    with pytest.raises(BlobsyncError, match="the network is down"):
        bob.jobs.find("ann_1764000000_0badcafe")
