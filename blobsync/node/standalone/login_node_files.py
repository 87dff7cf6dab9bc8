"""Reads and writes a job's files on a login node. Standard library only, Python 3.8 or newer.

Its source text is given to ``python3 -c`` there (see ``login_node.py``): one JSON request on standard input, one
JSON answer on standard output.
"""

from __future__ import annotations

import base64
import errno
import glob
import json
import os
import sys
import time
from contextlib import suppress
from typing import Any

SILENT_SECONDS = 86_400
# How much of the end of a log is read for its last line, and how much of that is shown.
LAST_BYTES, LAST_CHARS = 4096, 300


def write(request: dict[str, Any]) -> Any:
    """Make the job's directory, for its owner only, and its files; returns its absolute path."""
    folder = _absolute(request["folder"])
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    # An existing one may belong to another user, with links to other places.
    if os.stat(folder).st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "it belongs to another user", folder)
    os.chmod(folder, 0o700)
    for name in request["folders"]:
        os.makedirs(os.path.join(folder, name), 0o700, exist_ok=True)
    for name, text in request["files"].items():
        path = os.path.join(folder, name)
        with suppress(FileNotFoundError):
            os.remove(path)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as target:
            target.write(text)
    return folder


def find_folder(request: dict[str, Any]) -> Any:
    """The folder's absolute path, and the job number that its job recorded (empty: it has not begun)."""
    folder = _absolute(request["folder"])
    number = ""
    with suppress(OSError, ValueError), open(os.path.join(folder, "slurm_job_id"), encoding="ascii") as source:
        number = source.read(64).strip()
    return [folder, number]


def clear(request: dict[str, Any]) -> Any:
    """Remove the secrets of a job that was never created."""
    with suppress(FileNotFoundError):
        os.remove(os.path.join(_absolute(request["folder"]), "secrets.json"))


def _absolute(folder: str) -> str:
    return os.path.realpath(os.path.expanduser(folder))


def list_logs(request: dict[str, Any]) -> Any:
    """Name and size of each text file below the job's log folders."""
    found = []
    base = request["folder"]
    for folder, _, names in os.walk(base, onerror=_raise_unless_gone):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.basename(folder) in request["log_folders"] and os.path.isfile(path):
                found.append([os.path.relpath(path, base), os.path.getsize(path)])
    return sorted(found)


def _raise_unless_gone(error: OSError) -> None:
    """A folder that cannot be read is not an empty one."""
    if not isinstance(error, FileNotFoundError):
        raise error


def read(request: dict[str, Any]) -> Any:
    """Read bytes ``start`` to ``end`` of a file, as base64."""
    with open(request["path"], "rb") as source:
        source.seek(request["start"])
        length = -1 if request["end"] is None else max(0, request["end"] - request["start"])
        return base64.b64encode(source.read(length)).decode()


def tails(request: dict[str, Any]) -> Any:
    """The last line of each task's log below a job's folder, as pairs of number and line."""
    found = {}
    for name in os.listdir(request["folder"]):
        number = name[len("task_") :] if name.startswith("task_") else ""
        logs = os.path.join(request["folder"], name, "user_logs")
        for log in ("std_log.txt", "std_log_process_0.txt"):
            with suppress(OSError), open(os.path.join(logs, log), "rb") as source:
                source.seek(max(0, os.fstat(source.fileno()).st_size - LAST_BYTES))
                lines = source.read(LAST_BYTES).decode("utf-8", "replace").split("\n")
                if number.isdigit() and (written := [line for line in lines if line.strip()]):
                    found[int(number)] = written[-1].rpartition("\r")[2][-LAST_CHARS:]
    return sorted(found.items())


def codes(request: dict[str, Any]) -> Any:
    """The recorded exit code and time of each job (null: none), and those of its tasks; removes the files that only
    running jobs need.

    A job that the scheduler has forgotten may be another scheduler's: it has ended if it recorded that, or has been
    silent for long.
    """
    lost = [one for one in request["folders"] if one not in request["listed"]]
    over = [one for one in lost if os.path.exists(os.path.join(one, "exit_code")) or _is_silent(one)]
    for folder in [*request["ended"], *over]:
        with suppress(OSError):
            os.remove(os.path.join(folder, "secrets.json"))
    return [_code(folder) for folder in request["folders"]]


def begun(request: dict[str, Any]) -> Any:
    """Whether a process of each job, or of a task of it, said that it is up; the batch script forgets earlier runs.

    An empty folder is no job's.
    """
    places = [glob.escape(_absolute(folder)) if folder else "" for folder in request["folders"]]
    return [bool(place and (glob.glob(f"{place}/up/*") or glob.glob(f"{place}/task_*/up/*"))) for place in places]


def _is_silent(folder: str) -> bool:
    """Whether a job that has begun has not written a line for a day; nodes write one each minute."""
    base = glob.escape(folder)
    logs = [path for part in ("", "task_*/") for path in glob.glob(f"{base}/{part}system_logs/*")]
    return bool(logs) and time.time() - max(map(os.path.getmtime, logs)) > SILENT_SECONDS


def _code(folder: str) -> list[Any] | None:
    """The exit code and time; of an array, the worst code and the last time, and those of each task."""
    found = _ends(folder)
    tasks = [[int(task), *end] for task, end in found if task.isdigit()]
    ends = [end for _, end in found]
    return [max(code for code, _ in ends), max(when for _, when in ends), *tasks] if ends else None


def _ends(folder: str) -> list[tuple[str, list[float]]]:
    """What a job, and each task of it, recorded at its end, by the number of the task (of the job: none)."""
    found = []
    base = glob.escape(folder)
    for path in [os.path.join(folder, "exit_code"), *glob.glob(os.path.join(base, "task_*", "exit_code"))]:
        task = os.path.basename(os.path.dirname(path)).rpartition("task_")[2] if "/task_" in path else ""
        with suppress(OSError, ValueError), open(path, encoding="ascii") as source:
            found.append((task, [int(source.read()), os.path.getmtime(path)]))
    return found


VERBS = {
    "write": write,
    "find": find_folder,
    "clear": clear,
    "logs": list_logs,
    "read": read,
    "codes": codes,
    "tails": tails,
    "begun": begun,
}


def main() -> int:
    """Answer one request; errors of the file system are returned as answers."""
    # Files are created private.
    os.umask(0o077)
    request = json.load(sys.stdin)
    try:
        answer = {"answer": VERBS[request["verb"]](request)}
    except OSError as error:
        answer = {"error": f"{error.strerror}: {error.filename}"}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
