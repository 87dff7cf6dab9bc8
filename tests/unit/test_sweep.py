"""Sweeps: which tasks are asked for, and what each one's command is."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from blobsync.backends.slurm.script import build_script
from blobsync.base.errors import UsageError
from blobsync.jobs.record import JobRecord
from blobsync.jobs.task_table import TaskRow, sorted_rows, task_rows
from blobsync.jobspec.spec import JobRef, JobSpec, RunInfo, State, TaskArray, TaskInfo
from blobsync.jobspec.sweep import (
    MOST_TASKS,
    array_argument,
    array_text,
    command_of,
    demand_fillable,
    read_array,
    sweep,
    sweep_tags,
    with_parameters,
)
from blobsync.jobspec.task_states import counts_text, settled, together
from tests.fakes.jobs import make_spec

# What a shell would make something of.
HOSTILE = """a b'; $(touch pwned) `touch pwned` "$HOME" \\ # * {seed} ~ & | > x"""


def test_values_are_combined_or_taken_side_by_side() -> None:
    made = sweep(["lr=0.1,0.01", "seed=-1..1"])
    assert (made.count, made.parallel, made.names) == (6, 0, ("lr", "seed"))
    assert made.rows == (("0.1", "-1"), ("0.1", "0"), ("0.1", "1"), ("0.01", "-1"), ("0.01", "0"), ("0.01", "1"))
    assert sweep(["lr=0.1,0.01", "seed=3,5"], zipped=True).rows == (("0.1", "3"), ("0.01", "5"))
    assert sweep({"lr": [0.1, 1e-05], "seed": range(2), "on": "yes"}).rows[-1] == ("1e-05", "1", "yes")
    assert sweep_tags(made) == {"sweep.lr": "0.1,0.01", "sweep.seed": "-1,0,1"}


FILES = {
    "a.csv": '\ufeffname,text\nx,"1,5"\ny,\n',
    "a.jsonl": '{"name": "x", "text": "1,5"}\n\n{"name": "y", "text": ""}\n',
    "a.yaml": "- {name: x, text: '1,5'}\n- {name: y, text: ''}\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_line_of_a_file_is_a_task(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(FILES[name])
    assert sweep((), path).rows == (("x", "1,5"), ("y", ""))
    assert sweep(["seed=1,2"], path).count == 4


def test_numbers_stay_as_they_are_written(tmp_path: Path) -> None:
    for name, text in {"n.jsonl": '{"lr": 1e-04, "on": true}', "n.yml": "- lr: 1e-04\n  on: true\n"}.items():
        (tmp_path / name).write_text(text)
        assert sweep((), tmp_path / name).rows == (("1e-04", "true"),)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lr"], "not NAME=VALUE"),
        (["lr=1,,2"], "not NAME=VALUE"),
        (["l-r=1"], "not the name of a parameter"),
        (["lr=1", "LR=2"], "lr and LR are one name, BLOBSYNC_PARAM_LR"),
        (["lr=1", "lr=2"], "are one name"),
        (["seed=4..0"], "begins after its end"),
        (["seed=0..999999999999999"], "at most 10,000"),
        (["a=0..200", "b=0..200"], "at most 10,000"),
        (["a=x\ny"], "control character"),
        ([f"a={'x' * 100_001}"], "has more than 100,000 characters"),
        ([f"a={','.join(['x' * 90_000] * 6)}"], "characters in all"),
    ],
)
def test_words_that_are_no_sweep_are_refused(words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        sweep(words)
    with pytest.raises(UsageError, match="a has 2, b has 3"):
        sweep(["a=1,2", "b=1..3"], zipped=True)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.txt", "x", "neither .csv"),
        ("a.csv", "", "no parameters"),
        ("a.csv", "a,a\n1,2\n", "a name twice"),
        ("a.csv", "a,b\n1\n", "entry 1 lacks one value each of a, b"),
        ("a.csv", "a\n1,2\n", "no parameters"),
        ("a.csv", 'a\n"1', "end of data"),
        ("a.jsonl", "[1]", "not a mapping"),
        ("a.jsonl", '{"a": 1, "a": 2}', "stands twice"),
        ("a.jsonl", '{"a": [1]}', "entry 1 lacks"),
        ("a.jsonl", '{"a": null}', "entry 1 lacks"),
        ("a.jsonl", '{"a": 1}\n{"b": 1}', "entry 2 lacks"),
        ("a.jsonl", "[" * 100_000, "a.jsonl: "),
        ("a.yaml", "a: 1", "not a list"),
        ("a.yaml", "- !!python/object/apply:os.system ['touch pwned']", "not a mapping"),
        ("a.yaml", "- &a {a: *a}", "a.yaml: "),
        ("a.yaml", "[" * 5000, "a.yaml: "),
        ("a.yaml", "- {a: 1}\n" * 40_000, "more than 200,000 characters of YAML"),
        ("a.csv", ",".join(f"n{at:06}" for at in range(80_000)) + "\n" + "1," * 79_999 + "1", "characters in all"),
        ("a.csv", "a\n" + "1\n" * (MOST_TASKS + 1), "at most 10,000"),
        ("a.csv", "a\n" + "1" * 5_000_000, "more than 4,000,000"),
    ],
)
def test_a_file_that_is_no_list_of_tasks_is_refused(name: str, text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        sweep((), path)
    assert not (tmp_path / "pwned").exists()


def test_a_pipe_or_a_missing_file_is_no_list_of_tasks(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "p.csv")
    for name in ("p.csv", "none.csv"):
        with pytest.raises(UsageError, match=name):
            sweep((), tmp_path / name)


@pytest.mark.parametrize(
    ("text", "numbers", "parallel"),
    [
        ("0-3", (), 0),
        ("0-9%2", (), 2),
        ("1,3,5", (1, 3, 5), 0),
        ("0-6:3", (0, 3, 6), 0),
        ("7", (7,), 0),
        ("5-6%9", (5, 6), 2),
        ("2-5,0-3,4", (), 0),
    ],
)
def test_slurms_array_is_a_list_of_tasks(text: str, numbers: tuple[int, ...], parallel: int) -> None:
    made = read_array(text)
    assert (made.numbers, made.parallel) == (numbers, parallel)
    assert read_array(array_text(made)) == made
    for wrong in ("", "x", "3-1", "0-9%0", "0-9%x", "0-3;rm", "0-9999999", "1,,2", "-3"):
        with pytest.raises(UsageError):
            read_array(wrong)


def test_a_number_that_several_parts_of_an_array_name_counts_once() -> None:
    assert read_array("0-9999,5000-9999,0-9999:2").count == 10_000
    with pytest.raises(UsageError, match="10,001 tasks: a job has at most 10,000"):
        read_array("0-9999,5000-10000")
    # A cluster may tell any text.
    began = time.process_time()
    with pytest.raises(UsageError, match="not numbers of tasks"):
        read_array(",".join(["0-9999"] * 30_000))
    assert time.process_time() - began < 1


def test_an_array_may_stand_among_the_words_for_sbatch() -> None:
    words = ("--array=0-3%2", "array 7", "--array-x=1", "--exclusive")
    assert [array_argument([word]) for word in words] == ["0-3%2", "7", "", ""]
    spec = make_spec("true", tasks=read_array("0-3").only([2]))
    script = build_script(spec, {"args": ["--array=0-3", "--mail-type=END"]})
    assert [line for line in script.split("\n") if "array" in line] == ["#SBATCH --array=2"]


def _filled(*argv: str, **values: str) -> tuple[str, ...]:
    return command_of(argv, values)


def test_only_a_declared_placeholder_is_replaced_once() -> None:
    config = '{"lr": {lr}, "betas": {betas}}'
    assert _filled("train", config, "${lr}", "x{lr}y{lr}", lr="{seed}", seed="7") == (
        *("train", '{"lr": {seed}, "betas": {betas}}', "${lr}", "x{seed}y{seed}"),
    )


def test_a_shell_line_gets_a_value_as_one_word(tmp_path: Path) -> None:
    (line,) = _filled("printf '%s|' {a} x{a}y=${HOME}z  # {a}", a=HOSTILE)
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env={"HOME": "h"}, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{HOSTILE}|x{HOSTILE}y=hz|" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "line",
    [
        "echo '{a}' x",
        'echo "{a}" x',
        'echo "${X:-{a}}" x',
        "echo ${X:-{a}} x",
        'echo "$(echo "{a}")"',
        "echo `echo {a}`",
        "cat <<E\n{a}\nE",
        "echo $(( {a} ))",
        "[[ {a} -eq 1 ]] && x",
        "echo $[{a}]",
        "echo $'{a}' x",
        "echo {a} 'open",
        """echo ${X:-"a}" {a} "b"}""",
    ],
)
def test_a_placeholder_where_a_value_could_become_shell_text_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match=r"\{a\} stands") as caught:
        _filled(line, a="1")
    assert caught.value.hint == 'write "$BLOBSYNC_PARAM_A" there'
    # Nothing of the sort is said of what is no placeholder.
    assert _filled(line, b="1") == (line,)


def test_a_value_cannot_make_a_shell_line_of_a_program() -> None:
    with pytest.raises(UsageError, match="would make a shell line"):
        demand_fillable(("./run_{a}",), sweep({"a": ["x", "y; touch pwned"]}))
    assert _filled("./run_{a}", "x", a="y z") == ("./run_y z", "x")


def test_each_task_has_its_command_its_variables_and_its_number() -> None:
    spec = make_spec(
        "train", "--lr", "{lr}", env={"OUT": "o/{lr}", "KEPT": "{other}"}, tasks=sweep(["lr=1,2"]).only([1])
    )
    made = with_parameters(spec, 1)
    assert made.argv == ("train", "--lr", "2")
    assert made.env == {"OUT": "o/2", "KEPT": "{other}", "BLOBSYNC_PARAM_LR": "2", "BLOBSYNC_TASK": "1"}
    with pytest.raises(ValueError, match="not in"):
        with_parameters(spec, 0)


def test_some_tasks_of_a_sweep_keep_their_numbers_and_are_recorded_as_they_are() -> None:
    part = sweep(["lr=1,2", "seed=0..2"]).only({4, 1})
    assert (part.count, part.numbers, part.rows) == (2, (1, 4), (("1", "1"), ("2", "1")))
    spec = make_spec("true", tasks=part)
    assert JobSpec.from_json(spec.to_json()) == spec
    for wrong in ({"numbers": [1]}, {"rows": [["1"]]}, {"rows": [["1", "2", "3"]] * 2}, {"names": "ab"}, {"count": 3}):
        values = json.loads(spec.to_json())
        values["tasks"].update(wrong)
        with pytest.raises(ValueError, match=r"not as many|not a job specification|wrong type"):
            JobSpec.from_json(json.dumps(values))


# -- states --------------------------------------------------------------------------------------------------------


def _info(state: State, *tasks: TaskInfo) -> RunInfo:
    return RunInfo("me_1_0badcafe", state, tasks=tasks)


def test_the_state_of_a_job_is_made_of_those_of_its_tasks() -> None:
    done, failed = TaskInfo(0, State.COMPLETED, 0, 0, 5.0, 6.0), TaskInfo(2, State.FAILED, 3, 1, 7.0, 9.0)
    running, gone = TaskInfo(1, State.RUNNING, started=4.0), TaskInfo(1, State.CANCELED, 143, ended=8.0)
    going = together(_info(State.QUEUED), [failed, running, done])
    assert (going.state, going.exit_code, going.started, going.ended) == (State.RUNNING, None, 4.0, None)
    over = together(_info(State.QUEUED), [failed, gone, done])
    assert (over.state, over.exit_code, over.ended, over.restarts) == (State.FAILED, 3, 9.0, 1)
    assert together(_info(State.QUEUED), [gone, done]).state is State.CANCELED
    assert counts_text(over.tasks) == "1 of 3 done, 1 failed, 1 canceled"


def test_an_end_that_the_platform_has_forgotten_is_kept_and_every_task_has_a_state() -> None:
    array = TaskArray(4, 0)
    known = (TaskInfo(0, State.FAILED, 3), TaskInfo(1, State.RUNNING))
    now = settled(array, known, _info(State.RUNNING, TaskInfo(2, State.RUNNING)))
    assert [task.state for task in now.tasks] == [State.FAILED, State.QUEUED, State.RUNNING, State.QUEUED]
    assert now.state is State.RUNNING and now.exit_code is None
    end = settled(array, known, _info(State.COMPLETED))
    assert (end.state, end.exit_code) == (State.FAILED, 3) and end.tasks[3].state is State.COMPLETED
    lost = settled(array, (), _info(State.COMPLETED, TaskInfo(0, State.COMPLETED, 0)))
    assert (lost.state, lost.exit_code, lost.reason) == (State.UNKNOWN, None, "the end of 3 tasks is not known")
    timed = TaskInfo(0, State.FAILED, 3, 0, 10.0, 70.0)
    gone = settled(array, (timed,), _info(State.RUNNING, TaskInfo(0, State.FAILED)))
    assert gone.tasks[0] == timed, "what the platform has forgotten of an end stays"
    again = settled(array, (timed,), _info(State.RUNNING, TaskInfo(0, State.RUNNING, started=90.0)))
    assert again.tasks[0] == TaskInfo(0, State.RUNNING, started=90.0)
    assert settled(array, (), _info(State.QUEUED)) == _info(State.QUEUED)
    assert {task.state for task in settled(array, (), _info(State.FAILED)).tasks} == {State.UNKNOWN}


def _rows(**info: Any) -> tuple[JobRecord, tuple[TaskRow, ...]]:
    spec = make_spec("x", tasks=sweep({"lr": ["10", "9", "x"]}))
    tasks = (TaskInfo(0, State.RUNNING, started=40.0), TaskInfo(1, State.FAILED, 3, 0, 10.0, 70.0))
    record = JobRecord(spec, JobRef("me_1_0badcafe", "1"), "local", _info(State.RUNNING, *tasks), 0.0)
    return record, task_rows(record, {1: "boom"}, {0: 0.5, 1: 0.25}, 100.0)


def test_a_table_has_a_row_for_each_task_and_is_sorted_by_any_column() -> None:
    record, rows = _rows()
    assert [row.task.state for row in rows] == [State.RUNNING, State.FAILED, State.QUEUED]
    assert [(row.seconds, row.last_line) for row in rows] == [(60.0, ""), (60.0, "boom"), (None, "")]
    by = {name: [row.task.number for row in sorted_rows(rows, name)] for name in ("index", "lr", "metric", "state")}
    assert by == {"index": [0, 1, 2], "lr": [1, 0, 2], "metric": [1, 0, 2], "state": [1, 2, 0]}
    assert [row.task.number for row in sorted_rows(rows, "metric", "m.json:acc:max")] == [0, 1, 2]
    with pytest.raises(UsageError, match="no such column"):
        sorted_rows(rows, "loss")
    assert shlex.join(record.spec.argv) == "x"
