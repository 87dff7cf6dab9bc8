"""Runs TensorBoard or Jupyter beside a job, on its node. Standard library only, Python 3.8 or newer.

Its source text is given to ``python3 -c`` there (see ``job_tunnel.py``): one JSON request as the first line of standard
input, one JSON answer on standard output. The program ends with this one: at the end of standard input.

A token is passed by standard input and the environment, so that no list of processes shows it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from glob import glob
from typing import Any

# Names of the programs, newest first; https://jupyter-server.readthedocs.io/en/latest/users/configuration.html
_JUPYTERS = ("jupyter-lab", "jupyter-notebook", "jupyter-server")
# Less than the client waits for the answer (seconds).
_OPEN_SECONDS = 100.0
_POLL_SECONDS = 0.1
# linux/auxvec.h
_AT_SECURE = 23


def environment_of(run_id: str) -> dict[str, str]:
    """The environment of one of the job's programs, with its Python and its folder; else ours.

    Only of our own processes: other users' could have the job's id, too, and would choose what root runs.
    """
    for process in sorted(glob("/proc/[0-9]*")):
        # Most belong to other users, and some end meanwhile.
        with suppress(OSError, IndexError, struct.error):
            pairs = [os.fsdecode(item).partition("=") for item in own_variables(process) if item]
            found = {name: value for name, _, value in pairs}
            if found.get("BLOBSYNC_RUN_ID") == run_id:
                return found
    return dict(os.environ)


def own_variables(process: str) -> list[bytes]:
    """The environment of a process, a folder of proc(5). Raises ``OSError`` for one that is not the user's."""
    born = birth(process)
    # The owner is checked first: a program of the user's cannot turn into another user's.
    if not is_own(process):
        raise PermissionError(process)
    found = read(process, "environ").split(b"\0")
    if birth(process) != born:
        # Another process has its id by now.
        raise ProcessLookupError(process)
    return found


def is_own(process: str) -> bool:
    """Whether a process is the user's, and was started by the user.

    A set-user-ID program such as sudo runs as root with variables of who started it; getauxval(3) has AT_SECURE.
    """
    users = re.search(rb"^Uid:((?:\s+[0-9]+){4})$", read(process, "status"), re.MULTILINE)
    values = dict(struct.iter_unpack("@LL", read(process, "auxv")))
    return users is not None and set(map(int, users[1].split())) == {os.geteuid()} and values.get(_AT_SECURE) == 0


def birth(process: str) -> bytes:
    """Its start time, which differs if the process id was reused."""
    return read(process, "stat").rpartition(b")")[2].split()[19]


def read(process: str, name: str) -> bytes:
    """The text of a file of its folder."""
    with open(os.path.join(process, name), "rb") as source:
        return source.read()


def choose_port(address: str, wanted: int) -> int:
    """The wanted port if it is free at this address, else another one."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in (wanted, 0):
        with suppress(OSError), socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            return int(probe.getsockname()[1])
    raise OSError("no port is free at " + address)


def program_words(request: dict[str, Any], port: int, path: str) -> list[str]:
    """The program's command line. Raises ``FileNotFoundError`` if the node does not have it."""
    address = request["address"]
    if request["program"] == "tensorboard":
        found = shutil.which("tensorboard", path=path)
        if found:
            return [found, "--logdir=" + request["logdir"], "--host=" + address, "--port=" + str(port)]
        raise FileNotFoundError("tensorboard is not installed where the job runs")
    found = next((there for name in _JUPYTERS for there in [shutil.which(name, path=path)] if there), None)
    if not found:
        raise FileNotFoundError("none of " + ", ".join(_JUPYTERS) + " is installed where the job runs")
    words = [found, "--no-browser", "--ip=" + address, "--port=" + str(port), "--ServerApp.port_retries=0"]
    # Containers may have no user but root.
    return [*words, "--allow-root"] if os.geteuid() == 0 else words


def start(request: dict[str, Any]) -> tuple[subprocess.Popen[bytes], int]:
    """Start the program; returns it and its port. Its output goes to our standard error."""
    env = environment_of(request["run_id"])
    port = choose_port(request["address"], request["port"])
    argv = program_words(request, port, env.get("PATH", os.defpath))
    if request["token"]:
        # https://jupyter-server.readthedocs.io/en/latest/operators/security.html
        env["JUPYTER_TOKEN"] = request["token"]
    folder = env.get("BLOBSYNC_ROOT", "")
    child = subprocess.Popen(
        argv, env=env, cwd=folder if os.path.isdir(folder) else None, stdin=subprocess.DEVNULL, stdout=sys.stderr
    )
    return child, port


def wait_until_open(child: subprocess.Popen[bytes], address: str, port: int) -> None:
    """Wait until the program listens: Jupyter takes seconds. Raises ``OSError`` if it ends, or takes too long."""
    until = time.monotonic() + _OPEN_SECONDS
    while child.poll() is None:
        with suppress(OSError), socket.create_connection((address, port), timeout=5):
            return
        if time.monotonic() > until:
            raise OSError("it does not listen at port " + str(port))
        time.sleep(_POLL_SECONDS)
    raise OSError("it ended with " + str(child.returncode))


def send_answer(values: dict[str, Any]) -> None:
    """Write one line and flush."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Start the program, report its port, and wait for its end or the end of input."""
    request = json.loads(sys.stdin.readline())
    try:
        child, port = start(request)
    except OSError as error:
        send_answer({"error": str(error)})
        return 1

    def end_with_input() -> None:
        sys.stdin.read()
        child.terminate()

    threading.Thread(target=end_with_input, daemon=True).start()
    try:
        wait_until_open(child, request["address"], port)
        send_answer({"port": port})
        return child.wait()
    except OSError as error:
        send_answer({"error": str(error)})
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        child.terminate()


if __name__ == "__main__":
    sys.exit(main())
