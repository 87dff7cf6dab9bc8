"""A sweep as one sweep job of Azure ML, whose trials are its tasks. Pure.

The one hyperparameter is the number of the task, of which each trial gets another one. Names and shapes of the job:
SweepJob of the specification; that Azure ML replaces ``${{search_space.NAME}}`` in a trial's command, and that
``runs/ID/children`` of run history lists the trials: azure-ai-ml 1.35. Which trial has which number is in the tags of
the sweep's run, as azure-train-core 1.62 reads them (``HyperDriveRun.get_hyperparameters``), or in the trial's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from blobsync.backends.aml.replies import AmlReply, read_job, read_run
from blobsync.base.plain_json import parse_object
from blobsync.jobspec.spec import RUN_ID, JobSpec, RunInfo, State, TaskArray, TaskInfo

# The service's own limit (max_total_trials).
MOST_TRIALS = 1000
# The hyperparameter, and the word of a command that gets its value.
_PARAMETER = "task"
COMMAND_WORD = f'"{_PARAMETER}=${{{{search_space.{_PARAMETER}}}}}"'
# A sweep job needs a metric to find its best trial by. Nothing logs this one.
_NO_METRIC = "blobsync"
_OF_TRIAL = ("command", "environmentId", "environmentVariables", "distribution", "resources")
# Trials have no services.
_NOT_OF_SWEEP = (*_OF_TRIAL, "services", "limits")
_NUMBER = re.compile(r"[0-9]{1,7}")


def as_sweep(job: Mapping[str, Any], spec: JobSpec, tasks: TaskArray) -> dict[str, Any]:
    """The properties of a command job as those of a sweep job, with a trial for each task."""
    limits = {
        "jobLimitsType": "Sweep",
        "maxTotalTrials": tasks.count,
        "maxConcurrentTrials": tasks.parallel or tasks.count,
        **({"trialTimeout": f"PT{spec.timeout_s}S"} if spec.timeout_s else {}),
    }
    return {
        **{key: value for key, value in job.items() if key not in _NOT_OF_SWEEP},
        "jobType": "Sweep",
        "trial": {key: job[key] for key in _OF_TRIAL if job.get(key) not in (None, {})},
        "samplingAlgorithm": {"samplingAlgorithmType": "Grid"},
        "searchSpace": {_PARAMETER: ["choice", [list(tasks.all_numbers)]]},
        "objective": {"goal": "Minimize", "primaryMetric": _NO_METRIC},
        "limits": limits,
    }


def is_sweep(body: AmlReply) -> bool:
    """Whether a job of the service is one."""
    return body.inner("properties").text("jobType") == "Sweep"


def trials_by_task(run: AmlReply, children: Sequence[AmlReply]) -> dict[int, AmlReply]:
    """The runs of the trials by the numbers of their tasks, as far as they are known."""
    tags, found = run.texts("tags"), {}
    for child in children:
        name = child.text("runId")
        texts = (tags.get(f"_aml_system_{name}"), tags.get(name), child.texts("tags").get("hyperparameters"))
        number = next((known for known in map(_number, texts) if known is not None), None)
        if number is not None and RUN_ID.fullmatch(name):
            found[number] = child
    return found


def read_sweep(body: AmlReply, run: AmlReply, children: Sequence[AmlReply]) -> RunInfo:
    """The state of a sweep and of its tasks, from its run and those of its trials."""
    info, trials = read_job(body, run), trials_by_task(run, children)
    tasks = [read_run(trial).of_task(number) for number, trial in sorted(trials.items())]
    rest = [number for number in _numbers(body) if number not in trials]
    known = {trial.text("runId") for trial in trials.values()}
    others = [read_run(child).state for child in children if child.text("runId") not in known]
    if not others and info.state in (State.FAILED, State.CANCELED):
        # No trial was made for them, and none will be.
        others = [info.state]
    if info.state.is_final and len(set(others)) == 1:
        # All ended in one way, whichever is which.
        tasks += [TaskInfo(number, others[0]) for number in rest]
    elif others:
        said = f"Azure ML does not say which tasks {len(others):,} of its trials are"
        state = State.FAILED if info.state is State.COMPLETED else info.state
        info = replace(info, state=state, reason=info.reason or said)
    return replace(info, tasks=tuple(tasks))


def _numbers(body: AmlReply) -> list[int]:
    """The numbers in the body of a sweep job; none in one of another form."""
    match body.inner("properties").inner("searchSpace").values.get(_PARAMETER):
        case [_, [[*numbers]]]:
            return [number for number in numbers if isinstance(number, int)]
    return []


def _number(text: str | None) -> int | None:
    """The number of the task in the text of a trial's hyperparameters."""
    try:
        value = parse_object(text or "").get(_PARAMETER)
    except ValueError:
        return None
    return int(str(value)) if _NUMBER.fullmatch(str(value)) else None
