"""A real Slurm cluster of two nodes on this machine, for tests: slurmctld and two slurmd from Debian's slurm-wlm.

Without munge and accounting, with free ports, everything below one directory. Two partitions: jobs of ``urgent``
preempt those of ``normal``, which are requeued.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.servers.ports import free_ports

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun")
READY_SECONDS = 120.0

_CONF = """\
ClusterName=blobsync-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
StateSaveLocation={base}/state
SlurmctldPidFile={base}/slurmctld.pid
SlurmctldLogFile={base}/slurmctld.log
SlurmdPidFile={base}/slurmd-%n.pid
SlurmdLogFile={base}/slurmd-%n.log
SlurmdSpoolDir={base}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=5
MinJobAge={min_job_age}
InactiveLimit=0
SlurmdParameters=config_overrides
GresTypes=card
MailProg=/bin/true
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=4 Gres=card:4 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=4 Gres=card:4 State=UNKNOWN
PartitionName=normal Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing_programs() -> tuple[str, ...]:
    """Programs of Slurm that this machine lacks; empty if a cluster can be started."""
    return tuple(name for name in PROGRAMS if _find(name) is None)


class SlurmCluster:
    """A cluster that runs while its block lasts, or until :meth:`stop` (safe to repeat)."""

    def __init__(self, base: Path, *, min_job_age: int = 300) -> None:
        self._base = base
        self._children: list[subprocess.Popen[bytes]] = []
        base.mkdir(parents=True, exist_ok=True)
        (base / "state").mkdir(exist_ok=True)
        self.config = base / "slurm.conf"
        # Counted only: there are no device files.
        (base / "gres.conf").write_text("Name=card Count=4\n")
        ports = free_ports(3)
        self.config.write_text(
            _CONF.format(
                host=socket.gethostname().split(".")[0],
                user=getpass.getuser(),
                base=base,
                controller_port=ports[0],
                port1=ports[1],
                port2=ports[2],
                min_job_age=min_job_age,
            )
        )

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment for clients of this cluster."""
        return {"SLURM_CONF": str(self.config)}

    def __enter__(self) -> SlurmCluster:
        try:
            self._start("slurmctld", "-D", "-i")
            for node in ("n1", "n2"):
                (self._base / f"spool-{node}").mkdir(exist_ok=True)
                self._start("slurmd", "-D", "-N", node)
            self._wait_until_idle()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def client(self, *argv: str) -> str:
        """The standard output of one of Slurm's own commands."""
        done = subprocess.run(
            argv, env={**os.environ, **self.environ}, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def stop(self) -> None:
        """End the nodes first: a slurmd that loses its controller would only complain."""
        for child in reversed(self._children):
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM)
        for child in reversed(self._children):
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._children.clear()

    def _start(self, name: str, *arguments: str) -> None:
        with (self._base / f"{name}{len(self._children)}.out").open("wb") as sink:
            child = subprocess.Popen(
                [str(_find(name)), *arguments],
                env={**os.environ, **self.environ},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        self._children.append(child)

    def _wait_until_idle(self) -> None:
        until = time.monotonic() + READY_SECONDS
        while time.monotonic() < until:
            with suppress(subprocess.CalledProcessError):
                if self.client("sinfo", "-h", "-N", "-p", "normal", "-o", "%T").split() == ["idle", "idle"]:
                    return
            for child in self._children:
                if child.poll() is not None:
                    raise RuntimeError(f"a Slurm daemon ended with {child.returncode}; see {self._base}")
            time.sleep(0.2)
        raise RuntimeError(f"Slurm was not ready after {READY_SECONDS:g} seconds; see {self._base}")


def _find(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
