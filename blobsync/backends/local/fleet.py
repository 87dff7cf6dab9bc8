"""Carries out an elastic job on this machine: its nodes are groups of processes, each with an address on loopback."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from blobsync.backends.local.fleet_rules import FleetNode, Steps, after_node, next_steps, shown_nodes
from blobsync.backends.local.run_files import RunFiles
from blobsync.base.process import ProcessRunner, RunningProcess
from blobsync.jobspec.elastic import bounds_of
from blobsync.jobspec.spec import JobSpec, NodeChange

MASTER_ADDRESS = "127.0.0.1"
# After being asked to end, a node has this long before it is asked again, which kills its processes.
PATIENCE_SECONDS = 10.0
_CANCELED = 128 + signal.SIGTERM


def address_of(node: int) -> str:
    """Where a node is on this machine. Only Linux has more than one address on loopback."""
    return f"127.0.0.{node + 1}" if sys.platform == "linux" else MASTER_ADDRESS


class Fleet:
    """The nodes of one job. ``look`` is called again and again, until it returns the job's code."""

    def __init__(
        self,
        spec: JobSpec,
        files: RunFiles,
        command: Sequence[str],
        process: ProcessRunner,
        environ: Mapping[str, str],
        gpus: Sequence[str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``command`` starts a node, once the words that tell its number and its folder are added."""
        self._spec, self._files, self._command = spec, files, command
        self._process, self._environ, self._gpus, self._clock = process, environ, gpus, clock
        self._nodes: dict[int, FleetNode] = {}
        self._children: dict[int, RunningProcess] = {}
        self._asked: dict[int, float] = {}
        self._told: tuple[tuple[int, ...], int] | None = None

    @property
    def wanted(self) -> int:
        """How many nodes there are to be: what was asked for last, within the job's bounds."""
        asked, bounds = self._files.read_wanted(), bounds_of(self._spec)
        return asked if asked is not None and bounds and asked in bounds else self._spec.nodes

    def look(self, *, canceled: bool) -> int | None:
        """Do what is to be done now; the job's code once all nodes have ended, None before that."""
        for number, child in list(self._children.items()):
            code = child.wait(0)
            if code is not None:
                self._has_ended(number, child, code)
        steps = next_steps(self._nodes, self.wanted, self._clock())
        if canceled:
            over = _CANCELED if steps.over is None else steps.over
            steps = Steps(end=tuple(sorted(self._children, reverse=True)), over=over)
        for number in steps.end:
            self._end(number)
        for number in steps.start:
            self._start(number)
        self._tell()
        return steps.over if not self._children else None

    def _start(self, number: int) -> None:
        node = self._nodes.get(number, FleetNode())
        words = ("--root", str(self._files.root_for(self._spec, number)), "--node-rank", str(number))
        env = {
            **self._environ,
            "MASTER_ADDR": MASTER_ADDRESS,
            "BLOBSYNC_ATTEMPT": str(node.starts),
            "PET_LOCAL_ADDR": address_of(number),
        }
        each = self._spec.gpus_per_node
        if self._gpus or not each:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[number * each : (number + 1) * each])
        self._children[number] = self._process.start((*self._command, *words), env=env)
        self._nodes[number] = replace(node, starts=node.starts + 1, runs=True, code=None)

    def _end(self, number: int) -> None:
        """Ask it, and ask again what has not ended by then."""
        now = self._clock()
        if now - self._asked.get(number, 0.0) > PATIENCE_SECONDS:
            self._asked[number] = now
            self._nodes[number] = replace(self._nodes[number], leaving=True)
            with suppress(ProcessLookupError):
                os.kill(self._children[number].pid, signal.SIGTERM)

    def _has_ended(self, number: int, child: RunningProcess, code: int) -> None:
        self._nodes[number] = after_node(self._nodes[number], code, self._clock())
        del self._children[number]
        self._asked.pop(number, None)
        said = f"node {number} ended with {code}\n{child.stderr_tail()}".rstrip()
        with self._files.log.open("a") as log:
            log.write(said + "\n")

    def _tell(self) -> None:
        now = tuple(shown_nodes(self._nodes)), self.wanted
        if now != self._told:
            self._told = now
            self._files.add_change(NodeChange(self._clock(), len(now[0]), now[1]), now[0])
