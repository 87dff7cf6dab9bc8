"""A job on one of its nodes: the command line, the specification, this node's place in it, and where its files are.

torchrun reads every option from ``PET_<OPTION>``, so the command of an elastic job stays ``torchrun train.py``; an
option on its command line wins. Seen with torchrun 2.13 and its c10d rendezvous:

* Without ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` on every node, a node that joins hangs for 60 seconds; then all end.
* ``max_restarts`` also counts nodes that leave, so it has to be large.
* The rendezvous is on one node; when that is lost, the others end within two seconds (pytorch/pytorch#67742).
* ``is_host`` selects that node. Otherwise each node compares the endpoint's name with its own, and on one machine the
  first to start is the host.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import blobsync
from blobsync.base.plain_json import parse_object
from blobsync.base.process import python_module
from blobsync.base.redaction import Secret, redact
from blobsync.jobspec.containers import wanted_image
from blobsync.jobspec.interactive import HOLDER, HOLDING_FOLDER
from blobsync.jobspec.spec import (
    MARK,
    OUTPUT_VARIABLE,
    OWN_OUTPUT,
    OWN_SECRETS,
    SERVICES,
    TASK_VARIABLE,
    FolderLink,
    JobSpec,
    Secrets,
    TaskArray,
    mark_of,
)
from blobsync.jobspec.sweep import is_shell_line, with_parameters
from blobsync.local.mark_complete import VARIABLE as REQUESTS_VARIABLE
from blobsync.node.ranks import (
    INDEX_VARIABLE,
    OF_ONE_PROCESS,
    NotReadyError,
    Ranks,
    expanded,
    master_address,
    master_port,
    rank_variables,
)

VERBS = ("prepare", "exec", "node", "finish", "here", "spread")


class NodeArguments(argparse.Namespace):
    """The parsed command line. ``root`` None: the code goes to a folder of this node; ``node_rank`` None: the launcher
    sets it; ``code`` is the command's exit code (``finish``), ``log`` whether ``exec`` and ``spread`` open the log of
    their rank or task, ``echo`` whether all logs are copied to our own output."""

    verb: str
    job: Path
    run_dir: Path
    secrets: Path | None
    root: Path | None
    node_rank: int | None
    log: bool
    code: int
    keep_root: str
    sync_seconds: float
    echo: bool


def parse_arguments(argv: Sequence[str]) -> NodeArguments:
    """Parse the command line. Raises ``SystemExit`` with code 2 where it is invalid."""
    parser = argparse.ArgumentParser(prog="blobsync-node")
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--job", required=True, type=Path, help="the job's specification")
    parser.add_argument("--secrets", type=Path, help="a file that only the owner can read")
    parser.add_argument("--run-dir", required=True, type=Path, help="where the job's logs are")
    parser.add_argument("--root", type=Path, help="where the code goes; without it, a folder of this node")
    parser.add_argument("--node-rank", type=int, help="which of the job's nodes this is")
    parser.add_argument("--log", action="store_true", help="exec, spread: write the log ourselves")
    parser.add_argument("--code", type=int, default=0, help="finish: what the command ended with")
    parser.add_argument("--keep-root", choices=("never", "failed", "always"), default="never")
    parser.add_argument("--sync-seconds", type=float, default=60.0)
    parser.add_argument("--echo", action="store_true", help="copy the logs to our own output, marked with their names")
    return parser.parse_args(argv, NodeArguments())


# How long a rendezvous that has enough nodes waits for more, and how long a node waits to join (seconds).
_CONF = "last_call_timeout=3,join_timeout=300"
# As in the examples of PyTorch and Kubeflow.
_MAX_RESTARTS = 100
_MONITOR_SECONDS = 0.5


def elastic_variables(
    spec: JobSpec, ranks: Ranks, environ: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """The variables added for the command of an elastic job.

    ``environ`` is the launcher's environment, ``given`` the command's so far: variables that the user set are kept.
    """
    address = master_address(spec, environ)
    host = f"[{address}]" if ":" in address else address
    settings = {
        "PET_NNODES": f"{spec.min_nodes}:{spec.max_nodes}",
        "PET_NPROC_PER_NODE": str(spec.workers_per_node),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{host}:{master_port(spec, environ)}",
        "PET_RDZV_ID": spec.run_id,
        "PET_MAX_RESTARTS": str(_MAX_RESTARTS),
        "PET_MONITOR_INTERVAL": str(_MONITOR_SECONDS),
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    own = {name: value for name, value in settings.items() if name not in given}
    conf = given.get("PET_RDZV_CONF", _CONF)
    if "is_host" not in conf and given.get("PET_RDZV_BACKEND", "c10d") == "c10d":
        conf = f"is_host={int(ranks.node_rank == 0)},{conf}".rstrip(",")
    bounds = {"BLOBSYNC_MIN_NODES": str(spec.min_nodes), "BLOBSYNC_MAX_NODES": str(spec.max_nodes)}
    return {**own, "PET_RDZV_CONF": conf, **bounds}


# The set of files that was brought back before the command, and with _STEP behind it its step.
RESTORED_VARIABLE = "BLOBSYNC_RESTORED"
# Launchers: programs that start others and set their ranks.
_RANK_STARTERS = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "srun")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
# A message names at most so many folders.
_NAMED_FOLDERS = 10


class NodeJob:
    """A job on this node: the paths of its files, its commands and environments, and blobsync's own log.

    ``environ`` is the launcher's environment. ``asked_to_stop_at`` is when the job was first asked to stop
    (``time.monotonic``), else 0.
    """

    def __init__(
        self,
        spec: JobSpec,
        secret_env: Mapping[str, Secret],
        arguments: NodeArguments,
        environ: Mapping[str, str],
        node_rank: int,
    ) -> None:
        self.number = _task_number(spec, environ)
        self.spec = spec = spec if self.number is None else with_parameters(spec, self.number)
        self.environ = environ
        self.node_rank = node_rank
        self.keep_root = arguments.keep_root
        self.sync_seconds = arguments.sync_seconds
        self.asked_to_stop_at = 0.0
        self._parent = os.getppid()
        # The nodes that are part of the job now; only those of an elastic job change.
        self.members: Callable[[], Collection[int]] = lambda: range(spec.nodes)
        self._secret_env = secret_env
        # Each task, and each replacement of a pod, has its own logs and code.
        pods = pods_before(environ)
        tried = f"attempt_{pods}" if pods else ""
        self.task = tried if self.number is None else "/".join(part for part in (f"task_{self.number}", tried) if part)
        self.run_dir = Path(os.path.abspath(arguments.run_dir)) / self.task
        self.node_log = self.run_dir / "system_logs" / f"node_{node_rank}.txt"
        self._beside_spec = Path(os.path.abspath(arguments.job)).parent
        self._holding = Path(os.path.abspath(arguments.run_dir)) / HOLDING_FOLDER
        self.owns_parent = arguments.root is None
        root = arguments.root or scratch_root(spec.run_id + self.task.replace("/", "_"), node_rank, environ)
        self.root = Path(os.path.abspath(root))
        self.work_dir = self.root / str(spec.options.get("work_dir", ""))
        self.in_image = wanted_image(spec) is not None
        # Without a code archive the job runs in the current folder, which must not be removed.
        self.in_place = spec.code is None and spec.spread is None
        self._arguments = arguments
        # A folder of the job on this node, which goes with its root.
        self.temp = self.beside("temp")
        # Where programs say that a set of files is complete, and which one was brought to this node.
        self.set_requests, self.restored = self.beside("complete"), self.beside("restored.json")
        # Written before the last start of the command, when older sets of files were there.
        self.sets_since = self.beside("sets-since")

    @property
    def stopped(self) -> bool:
        """Whether the job was asked to stop."""
        return self.asked_to_stop_at > 0

    def is_orphaned(self) -> bool:
        """Whether the process that started this one has exited, perhaps while the node was made ready: nothing else
        would stop the job."""
        return os.getppid() != self._parent

    @property
    def attempt(self) -> str:
        """How often the job (of an elastic job: this node) was restarted."""
        again = self.environ.get("SLURM_RESTART_COUNT") or self.environ.get("BLOBSYNC_ATTEMPT")
        return again or str(pods_before(self.environ))

    def removes_root(self, code: int) -> bool:
        """Whether the job's files are removed from this node when the command has ended with ``code``."""
        return not (self.in_place or self.keep_root == "always" or (self.keep_root == "failed" and code))

    @property
    def retries(self) -> int:
        """How often the command of a sweep's task is run again here when it has failed; other jobs are watched."""
        is_alone = self.number is not None and self.spec.tasks and not self.spec.spread and self.spec.world_size == 1
        return self.spec.retries if is_alone else 0

    @property
    def is_at_end(self) -> bool:
        """Whether no command runs any more: what is left to do is to upload and to clean up."""
        return self._arguments.verb == "finish"

    @property
    def is_later(self) -> bool:
        """Whether outputs of the job may have been uploaded before this node started."""
        return self.attempt != "0" or (self.spec.is_elastic and self.node_rank >= self.spec.nodes)

    @property
    def lineage(self) -> str:
        """Whose checkpoints this job goes on from: each task has its own."""
        return self.spec.lineage if self.number is None else f"{self.spec.lineage}_task_{self.number}"

    @property
    def has_checkpoints(self) -> bool:
        """Whether a folder has sets of files that are uploaded as one."""
        return any(entry.checkpoints for entry in self.folders("upload"))

    @property
    def mark(self) -> str:
        """The value of :data:`MARK` in each program of the job, or of this task, on this node."""
        return mark_of(self.spec.run_id, self.node_rank if self.number is None else self.number)

    def demand_work_dir(self) -> None:
        """Raise ``NotReadyError`` unless the command's working directory exists."""
        if self.work_dir.is_dir():
            return
        here = sorted(path.name for path in self.root.iterdir() if path.is_dir())
        named = ", ".join(here[:_NAMED_FOLDERS]) + (", ..." if len(here) > _NAMED_FOLDERS else "")
        raise NotReadyError(
            f"there is no folder {self.spec.options['work_dir']}, the cluster file's work_dir, in the job's folder;"
            f" its folders are: {named or 'none'}",
            hint="correct work_dir, or let setup make the folder",
        )

    def beside(self, name: str) -> Path:
        """The path of a file of ours beside the root, but never beside a folder of the user's."""
        if self.in_place:
            return self.run_dir / f"node_{self.node_rank}.{name}"
        return self.root.with_name(f"{self.root.name}.{name}")

    def warn(self, text: str) -> None:
        """Write to standard error."""
        sys.stderr.write(redact(text) + "\n")

    def say(self, text: str) -> None:
        """Write a line to this node's log, or to standard error if the disk is full; never to the user's log."""
        try:
            self.node_log.parent.mkdir(parents=True, exist_ok=True)
            with self.node_log.open("a", encoding="utf-8", errors="replace") as log:
                log.write(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + redact(text) + "\n")
        except OSError:
            self.warn(text)

    def folders(self, *modes: str) -> list[FolderLink]:
        """The folder entries with one of these modes."""
        return [entry for entry in self.spec.folders if entry.mode in modes]

    @property
    def own_output(self) -> Path | None:
        """The folder of this job, or of this task of it, inside the shared output folder; None for jobs without one."""
        folder, own = self.spec.options.get(OWN_OUTPUT), self.spec.run_id
        own = own if self.number is None else f"{own}/{self.number}"
        return self.root / str(folder) / own if folder else None

    def rank_log(self, rank: int) -> Path:
        """The log file of one process."""
        name = f"std_log_process_{rank}.txt" if self.spec.has_numbered_logs else "std_log.txt"
        return self.run_dir / "user_logs" / name

    def secret(self, name: str) -> str:
        """A secret variable of the job, from its file of secrets or from the environment."""
        found = self._secret_env.get(name)
        return found.reveal() if found is not None else self.environ.get(name, "")

    def user_environment(self, ranks: Ranks) -> dict[str, str]:
        """The environment of the user's program: the launcher's, the job's variables, and the rank."""
        secrets = {name: secret.reveal() for name, secret in self._secret_env.items() if name not in OWN_SECRETS}
        # For our own steps alone, of which a transfer's program is one; the user's may set the first themselves.
        ours = ("SLURM_OVERLAP", *(OWN_SECRETS if self.spec.spread is None else ()))
        env = {name: value for name, value in self.environ.items() if name not in ours}
        env.update({**self.spec.env, **secrets})
        ranked = rank_variables(self.spec, ranks, self.environ)
        env.update(ranked)
        if self.starts_ranks:
            # Its processes have ranks in variables of its own: ours would be the same for all of them.
            env = {name: value for name, value in env.items() if name not in OF_ONE_PROCESS}
        env[MARK] = self.mark
        env.update(BLOBSYNC_RUN_ID=self.spec.run_id, BLOBSYNC_ROOT=str(self.root))
        if self.spec.platform != "local" and any(entry.name == "output" for entry in self.spec.folders):
            # As in ACT: each node has its own home, so weights that rank 0 fetched would be missing on the others.
            env.setdefault("TORCH_HOME", str(self.root / "output" / "torch_home"))
        if self.own_output:
            env[OUTPUT_VARIABLE] = str(self.own_output)
        if self.has_checkpoints:
            env.update(self._checkpoint_variables())
        if self.spec.is_elastic:
            env.update(elastic_variables(self.spec, ranks, self.environ, env))
        env.update(expanded(self.spec.options.get("variables", {}), {**ranked, **env, **self._places()}))
        env.setdefault("PYTHONUNBUFFERED", "1")
        # hwloc's plugin "gl" looks for X servers at ports 6000 to 6009 of the node, and hangs where another program
        # listens: with TensorBoard at 6006, mpirun would never start.
        env.setdefault("HWLOC_COMPONENTS", "-gl")
        return env

    def _places(self) -> dict[str, str]:
        """What ``variables`` of a job may name besides ranks: folders of the job, of this node or of all of them."""
        return {
            "BLOBSYNC_TEMP": str(self.temp),
            "BLOBSYNC_SHARED": str(self.run_dir / "shared"),
            "BLOBSYNC_ATTEMPT": self.attempt,
            "BLOBSYNC_GPUS": str(self.spec.gpus // self.spec.nodes),
        }

    def _checkpoint_variables(self) -> dict[str, str]:
        """Where programs say that a set is complete, and which one was restored."""
        text = read_text(self.restored)
        found = parse_object(text) if text else {}
        names = {RESTORED_VARIABLE: found.get("path"), f"{RESTORED_VARIABLE}_STEP": found.get("step")}
        said = {name: str(value) for name, value in names.items() if value is not None}
        # In the foreground of a workstation nothing uploads what is said there.
        return {**said, **({REQUESTS_VARIABLE: str(self.set_requests)} if self.set_requests.is_dir() else {})}

    def command(self) -> tuple[str, ...]:
        """The user's argument vector; a single argument that contains white space is a shell line."""
        if self.spec.hold:
            return self._holding_command()
        if self.spec.spread is not None:
            return self.own_command("spread")
        argv, prefix = self.spec.argv, str(self.spec.options.get("command_prefix", ""))
        command = (*shlex.split(prefix), *argv)
        if self.is_shell_line:
            line = f"{prefix} {argv[0]}".strip()
            command = image_shell_line(line) if self.in_image else shell_line(line)
        return (*self.spec.options.get("wrapper", ()), *command)

    def _holding_command(self) -> tuple[str, ...]:
        """The command that keeps an interactive job's node."""
        words = ("hold", "--place", str(self._holding), "--node", str(self.node_rank), "--seconds", str(self.spec.hold))
        limit = ("--limit", str(self.spec.timeout_s)) if self.spec.timeout_s else ()
        # There, users log in through the service's own sshd, into a container that only this job uses.
        terminals = ("--terminals",) if self.spec.platform in SERVICES else ()
        return (sys.executable, "-I", str(self._beside_spec / HOLDER), *words, *limit, *terminals)

    def own_command(self, verb: str) -> tuple[str, ...]:
        """The command line that runs another verb of this program on this node."""
        given = self._arguments
        secrets = ("--secrets", os.path.abspath(given.secrets)) if given.secrets else ()
        place = (
            "--run-dir",
            os.path.abspath(given.run_dir),
            "--node-rank",
            str(self.node_rank),
            "--root",
            str(self.root),
        )
        return (*_this_program(), verb, "--job", os.path.abspath(given.job), *secrets, *place)

    @property
    def starts_ranks(self) -> bool:
        """Whether mpirun or srun starts the processes, in the user's command or in ours."""
        words = self.spec.argv
        if self.is_shell_line:
            with suppress(ValueError):
                words = tuple(shlex.split(words[0]))
        first = next((word for word in words if not _ASSIGNMENT.match(word)), "")
        outer = next(iter(self.spec.options.get("wrapper", ())), "")
        return any(os.path.basename(word) in _RANK_STARTERS for word in (outer, first))

    @property
    def is_shell_line(self) -> bool:
        """Whether the command is one line for a shell."""
        return is_shell_line(self.spec.argv)


def _task_number(spec: JobSpec, environ: Mapping[str, str]) -> int | None:
    """The number of the task that runs here; None if the job has no tasks. Raises ``NotReadyError``."""
    # sbatch may have been told of an array that the specification does not know of.
    given = environ.get("SLURM_ARRAY_TASK_ID") if spec.platform == "slurm" else None
    given = given or (environ.get(TASK_VARIABLE) if spec.tasks else None)
    # There a transfer's task is a node of its job.
    is_indexed = spec.tasks and spec.platform == "kubernetes" and spec.spread is None
    place = environ.get(INDEX_VARIABLE) if is_indexed else None
    if given is None and place is None:
        return None
    try:
        number = int(given) if given is not None else (spec.tasks or TaskArray(0, 0)).all_numbers[int(place or 0)]
        if spec.tasks:
            spec.tasks.parameters(number)
    except (ValueError, IndexError):
        raise NotReadyError(f"the job has no task {given or place!a}") from None
    return number


def _this_program() -> tuple[str, ...]:
    """How to start this program: the node archive, or the installed blobsync."""
    archive = Path(blobsync.__file__).parent.parent
    if (archive / "__main__.py").is_file():
        return (sys.executable, "-I", str(archive))
    return python_module("blobsync.node")


def pods_before(environ: Mapping[str, str]) -> int:
    """The number of earlier pods of this node in Kubernetes: failed and evicted ones."""
    given = (environ.get(name, "") for name in ("BLOBSYNC_FAILURES", "BLOBSYNC_EVICTIONS"))
    return sum(int(text) for text in given if text.isascii() and text.isdigit())


def demand_startable(spec: JobSpec, secrets: Secrets) -> None:
    """Raise ``NotReadyError`` for arguments and variables that cannot be passed to a program.

    No value is quoted: it may be secret."""
    options = {name: str(spec.options.get(name, "")) for name in ("work_dir", "command_prefix")}
    if not spec.argv:
        raise NotReadyError("the job has no command")
    try:
        shlex.split(options["command_prefix"])
    except ValueError as error:
        raise NotReadyError(f"command_prefix is not the start of a command: {error}") from None
    texts = {"command": spec.argv, "setup": spec.setup, **{name: (text,) for name, text in options.items()}}
    for what, words in texts.items():
        if not all(map(_is_word, words)):
            raise NotReadyError(f"{what} holds a character that no system takes")
    for name, value in {**spec.env, **secrets.env}.items():
        if not name or "=" in name or not _is_word(name):
            raise NotReadyError(f"env has a name that no system takes: {name!r}")
        if not _is_word(value):
            raise NotReadyError(f"the value of env.{name} holds a character that no system takes")


def _is_word(text: str) -> bool:
    """Whether it can be an argument or a value: no NUL, nothing that cannot be encoded."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def shell_line(line: str) -> tuple[str, ...]:
    """The argument vector that runs ``line`` in a shell."""
    return (shutil.which("bash") or "/bin/sh", "-c", line)


def image_shell_line(line: str) -> tuple[str, ...]:
    """The same for an image, which may have bash or not."""
    return ("sh", "-c", 'command -v bash >/dev/null 2>&1 && exec bash -c "$0"; exec sh -c "$0"', line)


def scratch_root(run_id: str, node_rank: int, environ: Mapping[str, str]) -> Path:
    """The folder on this node for the job's code; refuses one that another user made."""
    given = environ.get("BLOBSYNC_SCRATCH")
    base = Path(given or os.path.join(tempfile.gettempdir(), f"blobsync-{os.getuid()}"))
    base.mkdir(parents=True, mode=0o700, exist_ok=True)
    found = base.lstat()
    if not given and (stat.S_ISLNK(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022):
        # Its name is predictable: another user of this node may have created it.
        base = Path(os.path.expanduser("~/.local/state/blobsync/scratch"))
    return base / run_id / (environ.get("SLURMD_NODENAME") or f"node{node_rank}")


def read_text(path: Path) -> str:
    """The text of a file; empty if there is none."""
    with suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    return ""


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
