"""Which sets there are, which are complete, which one a restart takes, and which ones go."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pytest

from blobsync.base.file_states import LocalState
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.keep.checkpoint_sets import (
    ASIDE,
    STILL_SECONDS,
    FileSet,
    Heard,
    Reach,
    Told,
    best_first,
    fitting,
    in_order,
    is_of_set,
    judge,
    judge_part,
    kept,
    pointer_of,
    preferred,
    reach_of,
    removable,
    seconds_behind,
    set_of,
    sets_in,
    step_of,
    stored_names,
    value_at,
)
from blobsync.keep.marks import Mark

NOW = 1_000.0
HF = CheckpointRule("checkpoint-*")


def state(changed_at: float = 0.0, size: int = 1) -> LocalState:
    return LocalState(size, int(changed_at * 1e9), int(changed_at * 1e9), 1)


def a_set(name: str, *files: str, changed_at: float = 0.0) -> FileSet:
    return FileSet(name, {file: state(changed_at) for file in files})


@dataclass(frozen=True)
class Texts:
    """Files of a folder: texts by path, those that are cut off, and those that are no JSON."""

    texts: Mapping[str, str] = field(default_factory=dict)
    cut: tuple[str, ...] = ()
    not_json: tuple[str, ...] = ()

    def text(self, path: str) -> str | None:
        return self.texts.get(path)

    def is_whole(self, path: str) -> bool:
        return path not in self.cut

    def is_json(self, path: str) -> bool:
        return path not in self.not_json


def known(
    name: str,
    step: int | None = None,
    time: float = 0.0,
    generation: int = 1,
    values: Mapping[str, float] = MappingProxyType({}),
    stored: str = "",
) -> Mark:
    return Mark(name, stored or name, step, time, "", "", generation, values=values)


def names(marks: list[Mark]) -> list[str]:
    return [each.stored for each in marks]


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("checkpoint-*", "checkpoint-10/model.bin", "checkpoint-10"),
        ("checkpoint-*", "checkpoint-10/deep/er.bin", "checkpoint-10"),
        ("checkpoint-*", "run/checkpoint-10/a", None),
        ("run-*/checkpoint-*", "run-1/checkpoint-10/a", "run-1/checkpoint-10"),
        ("run-*/checkpoint-*", "run-1/a", None),
        ("*.ckpt", "last.ckpt", "last.ckpt"),
        ("*.ckpt", "logs/last.ckpt", None),
        # What names a set is none, also where the pattern fits everything.
        ("*", "latest", None),
        ("run/*", "run/latest_checkpointed_iteration.txt", None),
        ("run/*", "run/global_step5/a", "run/global_step5"),
        ("checkpoint-*", "checkpoint-10/latest", "checkpoint-10"),
        ("run-*/checkpoint-*", "run-1", None),
        # What was set aside is none, whatever the pattern fits; a file of that name in a set is one of its files.
        ("*", f"{ASIDE}/checkpoint-10/a", None),
        ("checkpoint-*", f"checkpoint-10/{ASIDE}", "checkpoint-10"),
    ],
)
def test_the_set_of_a_file(pattern: str, path: str, expected: str | None) -> None:
    assert set_of(CheckpointRule(pattern), path) == expected


def test_a_pointer_that_the_rule_names_is_no_set() -> None:
    assert set_of(CheckpointRule("*", complete=("../current",)), "current") is None


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.ckpt", "last.ckpt@1200", True),
        ("*.ckpt", "a@b.ckpt", True),
        ("run-*/checkpoint-*", "run-1/checkpoint-9@20261125T170300Z/model.bin", True),
        ("*.ckpt", "log@1.csv", False),
        ("run-*/checkpoint-*", "run-1@2/x", False),
        ("run/checkpoint-*", "run@2/checkpoint-9", False),
        ("*", "latest", False),
    ],
)
def test_versions_of_a_set_belong_to_it(pattern: str, path: str, expected: bool) -> None:
    assert is_of_set(CheckpointRule(pattern), path) == expected


def test_a_mark_of_something_else_than_a_set_of_the_rule_counts_for_nothing() -> None:
    good, wrong = known("checkpoint-1", 1), known("results", 2)
    assert fitting(HF, [good, wrong, known("checkpoint-1/model.bin", 3)]) == [good]


def test_sets_have_their_files_by_paths_below_them() -> None:
    files = {"checkpoint-1/a": state(), "checkpoint-1/b/c": state(), "log.txt": state(), "checkpoint-2": state()}
    assert [(one.name, sorted(one.files)) for one in sets_in(HF, files)] == [
        ("checkpoint-1", ["a", "b/c"]),
        ("checkpoint-2", [""]),
    ]


# Each kind: its rule, a complete set with the texts beside it, and what is missing without the last file or text.
KINDS = [
    (HF, a_set("checkpoint-9", "model.safetensors", "optimizer.pt", "trainer_state.json"), {}, "trainer_state.json"),
    (CheckpointRule("step-*"), a_set("step-9", "__0_0.distcp", ".metadata"), {}, ".metadata"),
    (CheckpointRule("global_step*"), a_set("global_step9", "mp_rank_00.pt"), {"latest": "global_step9"}, "latest"),
    (
        CheckpointRule("run/iter_*"),
        a_set("run/iter_0000009", "model.pt"),
        {"run/latest_checkpointed_iteration.txt": "9\n"},
        "run/latest_checkpointed_iteration.txt",
    ),
    (CheckpointRule("run/*", complete=("done.txt",)), a_set("run/a", "w.bin", "done.txt"), {}, "done.txt"),
]


@pytest.mark.parametrize(("rule", "one", "texts", "last"), KINDS, ids=lambda value: str(value)[:20])
def test_a_set_is_complete_when_its_framework_has_written_its_last_file(
    rule: CheckpointRule, one: FileSet, texts: Mapping[str, str], last: str
) -> None:
    assert judge(rule, one, Texts(texts), NOW).is_complete
    fewer = replace_files(one, {path: found for path, found in one.files.items() if path != last})
    half = judge(rule, fewer, Texts({}), NOW)
    assert not half.is_complete and last in half.missing
    # Neither the end of the program nor its good end changes that.
    assert not judge(rule, fewer, Texts({}), NOW, last=True, ended_well=True).is_complete
    # It has to be still, unless nothing writes any more.
    busy = replace_files(one, dict.fromkeys(one.files, state(NOW - 1)))
    assert "still" in judge(rule, busy, Texts(texts), NOW).missing
    assert judge(rule, busy, Texts(texts), NOW, last=True).is_complete


def replace_files(one: FileSet, files: Mapping[str, LocalState]) -> FileSet:
    return one._replace(files=files)


def test_a_program_may_say_it_with_an_empty_file_of_its_own() -> None:
    own = FileSet("checkpoint-1", {"model.bin": state(), "done": state(size=0)})
    assert judge(CheckpointRule("checkpoint-*", ("done",)), own, Texts(), NOW).is_complete
    distributed = FileSet("checkpoint-1", {"0_0.distcp": state(), ".metadata": state(size=0)})
    assert judge(HF, distributed, Texts(), NOW) == (False, "*.metadata is empty")


def test_an_earlier_pointer_says_nothing_of_a_later_set_and_a_later_one_does() -> None:
    rule, one = CheckpointRule("global_step*"), a_set("global_step20", "a")
    assert not judge(rule, one, Texts({"latest": "global_step10"}), NOW).is_complete
    assert judge(rule, one, Texts({"latest": "global_step30"}), NOW).is_complete
    assert not judge(rule, one, Texts({"latest": "best"}), NOW).is_complete
    best, by_pointer = a_set("best", "a"), CheckpointRule("*", complete=("../latest",))
    assert judge(by_pointer, best, Texts({"latest": "best"}), NOW).is_complete
    for text in ("", "global_step30", "other"):
        assert not judge(by_pointer, best, Texts({"latest": text}), NOW).is_complete


def test_what_is_missing_is_named_with_what_a_program_can_do_instead() -> None:
    otherwise = "; if the program writes none, complete: NAME in the cluster file or blobsync checkpoint done says it"
    assert judge(HF, a_set("checkpoint-9", "w"), Texts(), NOW).missing == f"it has no trainer_state.json yet{otherwise}"
    by_name = CheckpointRule("*", complete=("done",))
    assert judge(by_name, a_set("a", "w"), Texts(), NOW).missing == "it has no done yet"
    # As DCP leaves it when it is killed.
    assert judge(CheckpointRule("step-*"), a_set("step-9", ".metadata.tmp"), Texts(), NOW).missing == (
        "it has no .metadata yet"
    )
    sharded = a_set("checkpoint-9", "fsdp_0/__0_0.distcp")
    assert "trainer_state.json" in judge(HF, sharded, Texts(), NOW).missing


def test_only_the_files_that_complete_a_set_are_looked_into() -> None:
    rule = CheckpointRule("*", complete=("sub/done",))
    assert judge(rule, a_set("a", "sub/done"), Texts(not_json=("a/sub/done",)), NOW).is_complete
    beside = a_set("step-9", "__0_0.distcp", ".metadata", "extra/w.bin")
    assert judge(CheckpointRule("step-*"), beside, Texts(), NOW).is_complete
    pointer_first = CheckpointRule("*", complete=("../index", "done"))
    assert judge(pointer_first, a_set("a", "w"), Texts({"index": "a"}), NOW).missing == "it has no done yet"


def test_a_single_file_is_no_folder_of_the_framework_that_its_name_is_like() -> None:
    assert judge(HF, a_set("checkpoint-9", ""), Texts(), NOW).is_complete


def test_a_file_without_more_to_say_has_to_be_still_for_longer() -> None:
    assert judge(CheckpointRule("mine-*"), a_set("mine-9", "w"), Texts(), NOW).is_complete
    rule = CheckpointRule("*.ckpt")
    assert not judge(rule, a_set("last.ckpt", "", changed_at=NOW - 59), Texts(), NOW).is_complete
    assert judge(rule, a_set("last.ckpt", "", changed_at=NOW - 61), Texts(), NOW).is_complete
    fresh = a_set("last.ckpt", "", changed_at=NOW)
    assert not judge(rule, fresh, Texts(), NOW, last=True).is_complete, "its program was killed"
    assert judge(rule, fresh, Texts(), NOW, last=True, ended_well=True).is_complete
    soon = replace(rule, settle_seconds=2)
    assert judge(soon, a_set("last.ckpt", "", changed_at=NOW - 3), Texts(), NOW).is_complete


def test_what_is_cut_off_is_never_complete() -> None:
    one = a_set("checkpoint-9", "model.safetensors", "trainer_state.json")
    told = Told(1, 1, NOW)
    for content in (
        Texts(cut=("checkpoint-9/model.safetensors",)),
        Texts(not_json=("checkpoint-9/trainer_state.json",)),
    ):
        assert "cut off" in judge(HF, one, content, NOW, last=True, ended_well=True).missing
    assert not judge(HF, one, Texts(cut=("checkpoint-9/model.safetensors",)), NOW, told=told).is_complete
    empty = replace_files(one, {**one.files, "trainer_state.json": state(size=0)})
    assert "empty" in judge(HF, empty, Texts(), NOW).missing


def test_a_program_can_say_it_itself() -> None:
    one = a_set("checkpoint-9", "anything", changed_at=NOW - 1)
    assert judge(HF, one, Texts(), NOW, told=Told(1, 1, NOW)).is_complete
    few = judge(HF, one, Texts(), NOW, told=Told(1, 2, NOW))
    assert not few.is_complete and few.missing == "1 of 2 ranks on this node said so"
    assert judge(HF, one, Texts(), NOW, told=Told(1, 1, NOW - 1)).is_complete, "at the moment of its last change"
    changed = judge(HF, one, Texts(), NOW, told=Told(1, 1, NOW - 2))
    assert not changed.is_complete and "changed after" in changed.missing
    # Whoever names a file has said enough.
    by_name, done = (
        CheckpointRule("checkpoint-*", complete=("done",)),
        a_set("checkpoint-9", "done", changed_at=NOW - 9),
    )
    assert judge(by_name, done, Texts(), NOW, told=Told(1, 1, NOW - 10)).is_complete


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-1000", 1000),
        ("run-3/epoch=2-step=1200.ckpt", 1200),
        ("epoch=2-step=1200-v1.ckpt", 1200),
        ("global_step77", 77),
        ("iter_0000100", 100),
        ("last.ckpt", None),
        ("run-7/last.ckpt", None),
        ("best-" + "9" * 30, int("9" * 12)),
    ],
)
def test_the_step_in_a_name(name: str, step: int | None) -> None:
    assert step_of(name) == step


def test_another_version_gets_another_name() -> None:
    stamp = "20010909T014640Z"
    assert stored_names("last.ckpt", 1200, 1e9) == ("last.ckpt", "last.ckpt@1200", f"last.ckpt@{stamp}")
    assert stored_names("last.ckpt", None, 1e9) == ("last.ckpt", f"last.ckpt@{stamp}")
    assert stored_names("checkpoint-9", 9, 1e9) == ("checkpoint-9", f"checkpoint-9@{stamp}")


def test_a_start_comes_after_what_it_started_from_whatever_steps_and_clocks_say() -> None:
    marks = [known("checkpoint-1000", 1000, time=500), known("checkpoint-600", 600, time=100, generation=2)]
    assert names(in_order(marks)) == ["checkpoint-1000", "checkpoint-600"]
    one = [known("a-20", 20, time=1), known("a-10", 10, time=2)]
    assert names(in_order(one)) == ["a-10", "a-20"], "a node's clock may be wrong"
    assert names(in_order([*one, known("last.ckpt", None, time=3)])) == ["a-20", "a-10", "last.ckpt"]


STEPS = [known(f"checkpoint-{step}", step, time=step) for step in range(100, 1100, 100)]


@pytest.mark.parametrize(
    ("rule", "stays"),
    [
        (HF, range(100, 1100, 100)),
        (replace(HF, keep_last=2), (900, 1000)),
        (replace(HF, keep_every=300), (300, 600, 900, 1000)),
        (replace(HF, keep_last=1, keep_every=500), (500, 1000)),
    ],
)
def test_what_stays(rule: CheckpointRule, stays: tuple[int, ...]) -> None:
    assert [each.step for each in kept(rule, STEPS)] == list(stays)
    assert kept(rule, []) == []


@pytest.mark.parametrize(
    ("verified", "whole", "goes"),
    [({1000}, (), 8), ((), {900}, 8), ({900}, {900, 1000}, 8), ((), (), 0), ({800}, {800}, 0)],
)
def test_old_sets_may_go_while_one_that_stays_is_whole(
    verified: Collection[int], whole: Collection[int], goes: int
) -> None:
    names_of = {f"checkpoint-{step}" for step in verified}
    gone = removable(
        replace(HF, keep_last=2), STEPS, names_of, lambda mark: "" if mark.step in whole else "it was damaged"
    )
    assert [each.step for each in gone] == list(range(100, 1100, 100))[:goes]


def test_the_best_one_stays_and_can_be_asked_for() -> None:
    rule = replace(HF, keep_best="trainer_state.json:loss", restore="best")
    key = "trainer_state.json:loss"
    marks = [replace(each, values={key: abs(each.step - 420)}) for each in STEPS if each.step is not None]
    assert [each.step for each in kept(rule, marks)] == [400, 1000]
    assert preferred(rule, marks)[0].step == 400
    most = replace(rule, keep_best=f"{key}:max")
    assert best_first(most, marks)[0].step == 1000
    assert [each.step for each in preferred(rule, STEPS)[:2]] == [1000, 900], "no set has a value"


def test_versions_of_an_overwritten_file_stay_in_threes() -> None:
    versions = [known("last.ckpt", None, float(at), stored=f"last.ckpt@{at}") for at in range(6)]
    rule = CheckpointRule("last.ckpt", keep_every=1000)
    assert names(kept(rule, versions)) == ["last.ckpt@3", "last.ckpt@4", "last.ckpt@5"]
    assert names(kept(rule, versions[:5])) == ["last.ckpt@2", "last.ckpt@3", "last.ckpt@4"]
    assert names(kept(rule, versions[:2])) == ["last.ckpt@0", "last.ckpt@1"]
    assert names(kept(replace(rule, keep_last=1), versions)) == ["last.ckpt@5"]
    assert len(kept(CheckpointRule("last.ckpt"), versions)) == 6, "nothing goes without a key that says so"


def test_what_a_start_takes() -> None:
    assert [each.step for each in preferred(HF, STEPS)[:2]] == [1000, 900]
    assert [each.step for each in preferred(replace(HF, restore="300"), STEPS)] == [300]
    assert preferred(replace(HF, restore="none"), STEPS) == []
    assert preferred(replace(HF, restore="own"), STEPS)[0].step == 1000


def test_the_value_in_a_json_file() -> None:
    trainer = {"best_metric": 0.5, "log_history": [{"eval_loss": 3.0}, {"loss": 9}, {"eval_loss": 2.0}, {"loss": 1}]}
    assert value_at(trainer, "best_metric") == 0.5
    assert value_at(trainer, "log_history.eval_loss") == 2.0
    for field_name in ("nothing", "log_history", "log_history.eval_loss.more", "best_metric.x"):
        assert value_at(trainer, field_name) is None
    assert value_at({"log": [{"x": float("inf")}, {"x": 2.0}]}, "log.x") == 2.0
    for value in (float("nan"), float("inf"), True, "7", None, 10**400, -1.1e300):
        assert value_at({"a": value}, "a") is None
    assert value_at({"a": 1e300}, "a") == 1e300


def test_the_pointer_beside_a_restored_set() -> None:
    assert pointer_of(CheckpointRule("global_step*"), a_set("run/global_step9", "a")) == ("run/latest", "global_step9")
    megatron = pointer_of(CheckpointRule("iter_*"), a_set("iter_0000009", "a"))
    assert megatron == ("latest_checkpointed_iteration.txt", "9")
    assert pointer_of(HF, a_set("checkpoint-9", "trainer_state.json")) is None


def test_seconds_behind_count_from_the_oldest_set_without_a_mark() -> None:
    sets = [a_set("a", "x", changed_at=NOW - 30), a_set("b", "x", changed_at=NOW - 10)]
    assert seconds_behind(sets, lambda one: False, NOW) == 30
    assert seconds_behind(sets, lambda one: one.name == "a", NOW) == 10
    assert seconds_behind(sets, lambda one: True, NOW) is None
    assert seconds_behind(sets, lambda one: False, NOW - 60) == 0, "a clock that was set back"


# -- several files, stillness, and folders of DCP in one set ---------------------------------------------------------


def test_several_files_that_complete_a_set_must_all_be_there() -> None:
    rule = CheckpointRule("run-*", complete=("model.json", "*.done", "../index"))
    whole = a_set("run-1", "model.json", "rank0.done", "w.bin")
    texts = {"index": "run-1"}
    assert judge(rule, whole, Texts(texts), NOW).is_complete
    for missing in ("model.json", "rank0.done"):
        fewer = replace_files(whole, {path: found for path, found in whole.files.items() if path != missing})
        assert missing.replace("rank0", "*") in judge(rule, fewer, Texts(texts), NOW).missing
    assert "index does not name it" in judge(rule, whole, Texts(), NOW).missing
    assert "cut off" in judge(rule, whole, Texts(texts, not_json=("run-1/model.json",)), NOW).missing


def test_still_said_outright_waits_whatever_files_are_there() -> None:
    rule = CheckpointRule("checkpoint-*", complete=("still",))
    one = a_set("checkpoint-1", "trainer_state.json", changed_at=NOW - 59)
    assert "still for 60 s" in judge(rule, one, Texts(), NOW).missing
    assert judge(rule, one, Texts(), NOW + 2).is_complete
    assert not judge(rule, one, Texts(), NOW, last=True).is_complete
    soon = replace(rule, settle_seconds=7)
    assert judge(soon, a_set("checkpoint-1", "w", changed_at=NOW - 7), Texts(), NOW).is_complete
    assert "still for 7 s" in judge(soon, a_set("checkpoint-1", "w", changed_at=NOW - 6), Texts(), NOW).missing


def test_dcp_inside_of_a_set_is_not_the_end_of_it() -> None:
    sharded = a_set("checkpoint-9", "pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__0_0.distcp")
    assert "trainer_state.json" in judge(HF, sharded, Texts(), NOW).missing
    mine, model = CheckpointRule("mine-*"), ("model/.metadata", "model/__0_0.distcp")
    begun = a_set("mine-9", *model, "optimizer/__0_0.distcp")
    assert "optimizer has no .metadata yet" in judge(mine, begun, Texts(), NOW).missing
    both = a_set("mine-9", *model, "optimizer/.metadata", "optimizer/__0_0.distcp", changed_at=NOW - 59)
    assert "still for 60 s" in judge(mine, both, Texts(), NOW).missing
    assert judge(mine, both, Texts(), NOW + 2).is_complete


@pytest.mark.parametrize("rule", [CheckpointRule("step-*"), CheckpointRule("step-*", complete=(".metadata",))])
@pytest.mark.parametrize("begun", ["", "ema/"])
def test_a_folder_of_dcp_that_is_whole_says_nothing_of_the_one_that_was_begun(rule: CheckpointRule, begun: str) -> None:
    done = "" if begun else "ema/"
    half = a_set("step-20", f"{done}__0_0.distcp", f"{done}.metadata", f"{begun}__0_0.distcp")
    said = (False, f"{begun.rstrip('/') or 'it'} has no .metadata yet")
    assert judge(rule, half, Texts(), NOW) == said
    assert judge(rule, half, Texts(), NOW, last=True, ended_well=True) == said


def test_a_folder_of_dcp_that_other_sets_have_is_waited_for() -> None:
    rule, one = CheckpointRule("step-*"), a_set("step-20", "__0_0.distcp", ".metadata", changed_at=NOW - 59)
    assert judge(rule, one, Texts(), NOW, others={""}).is_complete
    for others in ({"", "ema"}, {"ema"}):
        assert "still for 60 s" in judge(rule, one, Texts(), NOW, others=others).missing
        assert not judge(rule, one, Texts(), NOW, last=True, others=others).is_complete
        assert reach_of(rule, one, None, others) is Reach.OWN
    both = a_set("step-20", ".metadata", "ema/.metadata", changed_at=NOW - 59)
    assert "still for 60 s" in judge(rule, both, Texts(), NOW).missing
    assert reach_of(rule, both, None) is Reach.OWN


def test_a_rank_of_dcp_that_is_done_by_itself_says_nothing_of_the_others() -> None:
    one = a_set("step-9", "__0_0.distcp", "__0.metadata", "__1_0.distcp", changed_at=NOW - 59)
    assert "still for 60 s" in judge(CheckpointRule("step-*"), one, Texts(), NOW).missing
    assert judge(CheckpointRule("step-*"), one, Texts(), NOW + 2).is_complete


# -- other nodes than node 0 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "files", "told", "reach"),
    [
        (CheckpointRule("*"), (".metadata", "__0_0.distcp"), None, Reach.ALL),
        (CheckpointRule("*", complete=(".metadata",)), (".metadata",), None, Reach.OWN),
        (CheckpointRule("*"), ("model/.metadata",), None, Reach.OWN),
        (CheckpointRule("*"), ("__0_0.distcp", "__0.metadata"), None, Reach.OWN),
        (CheckpointRule("*"), ("trainer_state.json",), None, Reach.OWN),
        (CheckpointRule("*"), ("w",), Told(1, 1, NOW), Reach.ALL),
        (CheckpointRule("*"), ("w",), Told(1, 1, NOW, of=2), Reach.RANKS),
        (CheckpointRule("*"), ("w",), Told(1, 1, 0.0), Reach.ALL),
        (CheckpointRule("*"), ("w",), Told(1, 1, -1.0), Reach.OWN),
        (CheckpointRule("*", complete=("*.metadata",)), (".metadata",), None, Reach.OWN),
    ],
)
def test_for_which_nodes_holds_what_node_0_knows(
    rule: CheckpointRule, files: tuple[str, ...], told: Told | None, reach: Reach
) -> None:
    assert reach_of(rule, a_set("a", *files), told) is reach


WHOLE, SHARD = Texts(), a_set("a", "__1_0.distcp", changed_at=NOW - 3)


@pytest.mark.parametrize(
    ("settle", "reach", "still_for", "expected"),
    [
        # DCP's last file says that all ranks have written: no more than the settling is waited for.
        (0, Reach.ALL, 0, True),
        (None, Reach.ALL, 4, False),
        (None, Reach.ALL, 5, True),
        (60, Reach.ALL, 5, True),
        # Nothing says it: never less than 5 s, and as long as on node 0.
        (0, Reach.OWN, 4, False),
        (0, Reach.OWN, 5, True),
        (None, Reach.OWN, 4, False),
        (30, Reach.OWN, 29, False),
        (30, Reach.OWN, 30, True),
        # Ranks that have to say it have not.
        (0, Reach.RANKS, 10_000, False),
    ],
)
def test_a_nodes_files_have_to_be_still(settle: int | None, reach: Reach, still_for: float, expected: bool) -> None:
    one = a_set("a", "__1_0.distcp", changed_at=NOW - still_for)
    rule = CheckpointRule("*", settle_seconds=settle)
    assert judge_part(rule, one, Heard(reach, 10_000), WHOLE, NOW).is_complete == expected


@pytest.mark.parametrize(
    ("reach", "seconds", "expected"),
    [(Reach.ALL, 0, True), (Reach.OWN, 59, False), (Reach.OWN, 60, True), (Reach.RANKS, 10_000, False)],
)
def test_a_node_without_files_is_done_only_if_it_cannot_write_any_more(
    reach: Reach, seconds: float, expected: bool
) -> None:
    rule = CheckpointRule("*", settle_seconds=0)
    assert judge_part(rule, None, Heard(reach, seconds), WHOLE, NOW).is_complete == expected
    if reach is not Reach.ALL:
        assert not judge_part(rule, None, Heard(reach, 0), WHOLE, NOW, last=True).is_complete, "it was killed"
    assert judge_part(rule, None, Heard(reach, 0), WHOLE, NOW, last=True, ended_well=True).is_complete


def test_what_a_nodes_own_ranks_say_counts() -> None:
    rule, heard = CheckpointRule("*", settle_seconds=0), Heard(Reach.RANKS, 0)
    assert judge_part(rule, SHARD, heard, WHOLE, NOW, told=Told(2, 2, NOW, of=4)).is_complete
    assert "1 of 2 ranks" in judge_part(rule, SHARD, heard, WHOLE, NOW, told=Told(1, 2, NOW, of=4)).missing
    assert "changed after" in judge_part(rule, SHARD, heard, WHOLE, NOW, told=Told(2, 2, NOW - 9, of=4)).missing
    assert judge_part(rule, None, heard, WHOLE, NOW, told=Told(2, 2, NOW, of=4)).is_complete
    few = judge_part(rule, None, heard, WHOLE, NOW, told=Told(1, 2, NOW, of=4))
    assert not few.is_complete and "1 of 2 ranks" in few.missing
    cut = Texts(cut=("a/__1_0.distcp",))
    for reach in Reach:
        for told in (Told(2, 2, NOW), None):
            cut_off = judge_part(rule, SHARD, Heard(reach, 10_000), cut, NOW, told=told, last=True)
            assert not cut_off.is_complete and "cut off" in cut_off.missing


def test_a_node_with_the_completing_file_of_its_own_is_judged_as_node_0() -> None:
    rule = CheckpointRule("*", complete=("done",), settle_seconds=0)
    one = a_set("a", "w", "done", changed_at=NOW - 1)
    assert judge_part(rule, one, Heard(Reach.OWN, 0), WHOLE, NOW).is_complete
    assert not judge_part(rule, a_set("a", "w", changed_at=NOW - 1), Heard(Reach.OWN, 0), WHOLE, NOW).is_complete


def test_after_a_kill_a_file_that_is_cut_off_is_still_too() -> None:
    rule = CheckpointRule("*", settle_seconds=0)
    assert not judge_part(rule, SHARD, Heard(Reach.OWN, 600), WHOLE, NOW, last=True).is_complete
    assert judge_part(rule, SHARD, Heard(Reach.ALL, 600), WHOLE, NOW, last=True).is_complete
    assert judge_part(rule, SHARD, Heard(Reach.OWN, 600), WHOLE, NOW, last=True, ended_well=True).is_complete
    assert not judge_part(rule, None, Heard(Reach.OWN, 0), WHOLE, NOW, ended_well=True).is_complete, "it still runs"
    # Of what all have written nothing is waited for, except for what changed after the end.
    for since, expected in ((0.5, True), (0, True), (-0.5, False)):
        one = a_set("a", "__1_0.distcp", changed_at=NOW - since)
        found = judge_part(CheckpointRule("*"), one, Heard(Reach.ALL, 0), WHOLE, NOW, last=True)
        assert found.is_complete is expected


def test_one_rank_that_speaks_for_all_is_believed_when_it_has_gone_on() -> None:
    rule, one = CheckpointRule("*", settle_seconds=0), a_set("a", "w", changed_at=NOW - 100)
    alone = Told(1, 2, NOW - 99, of=4)
    assert "1 of 2 ranks" in judge(rule, one, Texts(), NOW, told=alone).missing
    assert judge(rule, one, Texts(), NOW, told=alone._replace(went_on=True)).is_complete
    assert not judge(rule, one, Texts(), NOW - 41, told=alone._replace(went_on=True)).is_complete, "others may write"
    assert judge(rule, one, Texts(), NOW - 100 + STILL_SECONDS, told=alone._replace(went_on=True)).is_complete
    assert not judge(rule, one, Texts(), NOW, told=alone, last=True).is_complete
    assert not judge(rule, one, Texts(), NOW, told=alone, ended_well=True).is_complete
    assert judge(rule, one, Texts(), NOW, told=alone, last=True, ended_well=True).is_complete
    for there in (one, None):
        heard = Heard(Reach.RANKS, 60, went_on=True)
        assert judge_part(rule, there, heard, Texts(), NOW).is_complete
        early = heard._replace(seconds=59)
        assert not judge_part(rule, there and SHARD, early, Texts(), NOW).is_complete
