"""The settings of each toolkit as one line for a shell, and how many processes run it. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blobsync.jobs.batchai.reader import JsonPart

# What a shell reads as one word, with its variables replaced.
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,~-]*(?:\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})[A-Za-z0-9_./:=@%+,~-]*)*")
_SPECIAL = re.compile(r'["\\`]|\$(?![A-Za-z_{])')


@dataclass(frozen=True, slots=True)
class Toolkit:
    """What runs: ``line`` for a shell, ``processes`` in all, under mpirun or not.

    ``workers`` and ``servers`` are TensorFlow's, whose tasks are told apart by ``BLOBSYNC_TASK_TYPE``; 0 elsewhere.
    ``backend`` is PyTorch's communicationBackend.
    """

    name: str
    line: str
    processes: int
    uses_mpi: bool = False
    workers: int = 0
    servers: int = 0
    backend: str = ""

    def processes_on_each(self, nodes: int) -> int:
        """How many on each of so many nodes; tasks of TensorFlow may leave some without one."""
        if self.servers:
            return -(-self.workers // nodes) + -(-self.servers // nodes)
        return -(-self.processes // nodes)


def read_toolkit(properties: JsonPart, nodes: int) -> Toolkit:
    """The one toolkit of a job. Raises ``ConfigError`` where there is none, or a second one."""
    given = [name for name in _READERS if properties.has(name)]
    if not given:
        raise properties.error("", f"needs one of {', '.join(_READERS)}")
    if len(given) > 1:
        raise properties.error(given[1], f"stands beside {given[0]}: a job has one toolkit")
    if (part := properties.part(given[0])) is None:
        raise properties.error(given[0], "must be an object")
    return _READERS[given[0]](part, nodes)


def path_word(text: str) -> str:
    """A path as one word of a shell line, in which variables are replaced."""
    if _PLAIN.fullmatch(text):
        return text
    return '"' + _SPECIAL.sub(lambda match: "\\" + match[0], text) + '"'


def _python(part: JsonPart, arguments: str) -> str:
    interpreter = part.text("pythonInterpreterPath", "python")
    return f"{path_word(interpreter)} {path_word(part.demanded('pythonScriptFilePath'))} {arguments}".strip()


def _processes(part: JsonPart, nodes: int) -> int:
    """How many in all; without the key, one on each node."""
    count = part.whole("processCount", nodes) or nodes
    if count % nodes:
        raise part.error("processCount", f"is {count}, which cannot be divided evenly among {nodes} nodes")
    return count


def _script(name: str, *, mpi: bool) -> Callable[[JsonPart, int], Toolkit]:
    def read(part: JsonPart, nodes: int) -> Toolkit:
        return Toolkit(name, _python(part, part.text("commandLineArgs")), _processes(part, nodes), uses_mpi=mpi)

    return read


def _caffe2(part: JsonPart, nodes: int) -> Toolkit:
    return Toolkit("caffe2", _python(part, part.text("commandLineArgs")), nodes)


def _pytorch(part: JsonPart, nodes: int) -> Toolkit:
    backend = part.one_of("communicationBackend", "TCP", "Gloo", "MPI", "NCCL").lower()
    line = _python(part, part.text("commandLineArgs"))
    return Toolkit("pytorch", line, _processes(part, nodes), uses_mpi=backend == "mpi", backend=backend)


def _cntk(part: JsonPart, nodes: int) -> Toolkit:
    language = part.one_of("languageType", "BrainScript", "Python")
    is_script = language == "BrainScript" or (not language and part.has("configFilePath"))
    arguments = part.text("commandLineArgs")
    if is_script:
        for name in ("pythonScriptFilePath", "pythonInterpreterPath"):
            part.refuse(name, "stands beside BrainScript's configFilePath: only one of them can run")
        line = f"cntk configFile={path_word(part.demanded('configFilePath'))} {arguments}".strip()
    else:
        part.refuse("configFilePath", "is for languageType BrainScript")
        line = _python(part, arguments)
    return Toolkit("cntk", line, _processes(part, nodes), uses_mpi=True)


def _caffe(part: JsonPart, nodes: int) -> Toolkit:
    arguments = part.text("commandLineArgs")
    if part.has("configFilePath"):
        for name in ("pythonScriptFilePath", "pythonInterpreterPath"):
            part.refuse(name, "stands beside configFilePath: only one of them can run")
        line = f"caffe train --solver={path_word(part.demanded('configFilePath'))} {arguments}".strip()
    else:
        line = _python(part, arguments)
    return Toolkit("caffe", line, _processes(part, nodes), uses_mpi=True)


def _tensorflow(part: JsonPart, nodes: int) -> Toolkit:
    master, worker = part.text("masterCommandLineArgs"), part.text("workerCommandLineArgs")
    server = part.text("parameterServerCommandLineArgs")
    spread = nodes > 1 or part.has("workerCount") or part.has("parameterServerCount")
    workers = part.whole("workerCount", nodes) or nodes
    servers = part.whole("parameterServerCount", 1) or 1
    if not spread:
        for name in ("workerCommandLineArgs", "parameterServerCommandLineArgs"):
            if part.has(name):
                part.note(name, "has no effect: a job of one node without workerCount has only a master")
        return Toolkit("tensorflow", _python(part, master), 1, workers=1)
    if servers > nodes:
        raise part.error("parameterServerCount", f"is {servers}, and there are only {nodes} nodes")
    cases = {"master": master, "worker": worker, "ps": server}
    lines = " ".join(f"{name}) exec {_python(part, arguments)} ;;" for name, arguments in cases.items())
    line = f'case "$BLOBSYNC_TASK_TYPE" in {lines} esac'
    return Toolkit("tensorflow", line, workers + servers, workers=workers, servers=servers)


def _custom_mpi(part: JsonPart, nodes: int) -> Toolkit:
    return Toolkit("mpi", part.demanded("commandLine"), _processes(part, nodes), uses_mpi=True)


def _custom(part: JsonPart, nodes: int) -> Toolkit:
    line = part.demanded("commandLine")
    if nodes > 1:
        # https://github.com/Azure/BatchAI, schemas/2018-05-01/job.json: "to execute on the master node".
        line = f'[ "$RANK" != 0 ] || bash -c {shlex.quote(line)}'
        part.note("commandLine", "runs on the first node, as it did; the other nodes of the job stay idle")
    return Toolkit("custom", line, nodes)


_READERS: Mapping[str, Callable[[JsonPart, int], Toolkit]] = {
    "cntkSettings": _cntk,
    "pyTorchSettings": _pytorch,
    "tensorFlowSettings": _tensorflow,
    "caffeSettings": _caffe,
    "caffe2Settings": _caffe2,
    "chainerSettings": _script("chainer", mpi=True),
    "horovodSettings": _script("horovod", mpi=True),
    "customMpiSettings": _custom_mpi,
    "customToolkitSettings": _custom,
}
