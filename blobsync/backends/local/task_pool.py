"""Runs the tasks of an array on this machine, in their order: as many at a time as have GPUs, or without GPUs cores.
None is started again."""

from __future__ import annotations

from blobsync.backends.local.children import Children
from blobsync.backends.local.elastic_nodes import CANCELED
from blobsync.base.background_calls import usable_cores
from blobsync.base.exit_codes import shell_code
from blobsync.base.process import RunningProcess
from blobsync.jobspec.spec import TASK_VARIABLE, State, TaskArray, TaskInfo

# The most tasks at a time; each is a group of processes.
MOST_AT_A_TIME = 64
# How much of why a task failed is kept (characters).
_MOST_SAID = 1000


class TaskPool(Children):
    """The tasks of one job, whose exit code is the highest of a task. A task finds its number in ``TASK_VARIABLE``, and
    the GPUs are divided among those that run at a time."""

    def _prepare(self) -> None:
        spec, gpus, array = self._spec, self._gpus, self._spec.tasks or TaskArray(1, 1)
        self._waiting = list(array.all_numbers)
        each = spec.gpus_per_node if gpus else 0
        shares = [tuple(gpus[at : at + each]) for at in range(0, len(gpus) - each + 1, each)] if each else []
        # A transfer's tasks all see what the job has.
        several = min(array.parallel or MOST_AT_A_TIME, array.count, MOST_AT_A_TIME)
        room = len(shares) or (MOST_AT_A_TIME if array.parallel else max(1, usable_cores() // spec.procs_per_node))
        self._free = [shares[at] if shares else tuple(gpus) for at in range(min(several, room))]
        self._running: dict[int, tuple[RunningProcess, TaskInfo, tuple[str, ...]]] = {}
        self._code = 0

    def look(self, *, canceled: bool) -> int | None:
        for number, (task, _, _) in list(self._running.items()):
            code = task.wait(0)
            if code is not None:
                self._has_ended(number, code)
        unwanted = self._files.canceled_tasks()
        if canceled:
            self._code = self._code or CANCELED
            unwanted = {*self._waiting, *self._running}
        for number in unwanted & {*self._waiting}:
            self._waiting.remove(number)
            self._files.add_task(TaskInfo(number, State.CANCELED, ended=self._clock()))
        for number in unwanted & self._running.keys():
            self._ask_to_stop(number, self._running[number][0].pid)
        while self._free and self._waiting:
            self._start(self._waiting.pop(0), self._free.pop(0))
        return None if self._running else self._code

    def _start(self, number: int, gpus: tuple[str, ...]) -> None:
        root = self._files.root_for(self._spec)
        if not self._files.runs_in_place(self._spec):
            root = root.with_name(f"{root.name}_{number}")
        child = self._run(root, 0, {"CUDA_VISIBLE_DEVICES": ",".join(gpus), TASK_VARIABLE: str(number)})
        info = TaskInfo(number, State.RUNNING, started=self._clock())
        self._running[number] = (child, info, gpus)
        self._files.add_task(info)
        self._files.note_running()

    def _has_ended(self, number: int, code: int) -> None:
        task, info, gpus = self._running.pop(number)
        self._free.append(gpus)
        state = State.CANCELED if number in self._asked else State.FAILED if code else State.COMPLETED
        if state is not State.CANCELED or self._code:
            self._code = max(self._code, shell_code(code))
        said = task.stderr_tail()
        # A task that could not begin has no log of its own.
        why = said.rpartition("\n")[2].removeprefix("blobsync: ")[:_MOST_SAID] if state is State.FAILED else ""
        self._files.add_task(TaskInfo(number, state, shell_code(code), 0, info.started, self._clock(), why))
        self._end(number, code, f"task {number} ended with {code}\n{said}".rstrip() if code or said else "")
