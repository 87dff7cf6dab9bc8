"""The first program on a compute node: downloads the node archive, verifies it, and runs it.

    bootstrap.py prepare|exec|node|finish --job JOB.json [--secrets FILE] --run-dir DIR ...

Standard library of Python 3.8 only; 3.6 and 3.7 read it as far as the sentence that they are too old. ``blobsync.node``
gets the same arguments; if this Python is too old for it, ``old_python.py`` beside this file takes over.
"""

import fcntl
import hashlib
import json
import os
import re
import runpy
import shutil
import signal
import stat
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, List
from urllib.parse import quote, unquote

SETUP_FAILED, OLDEST, NEEDED, API_VERSION, MOUNTED = 72, (3, 8), (3, 10), "2021-12-02", "mounted:"
TRIES, SILENCE, DEADLINE, IN_URLS = 6, 60.0, 3600.0, "%:/?#[]@!$&'()*+,;=-._~"


class Boot:
    def __init__(self, argv: List[str]) -> None:
        self.verb, self.options = argv[0], dict(zip(argv, argv[1:]))
        self.job: dict[str, Any] = json.loads(Path(self.options["--job"]).read_bytes())
        self.secrets: dict[str, dict[str, str]] = {}
        with suppress(FileNotFoundError, KeyError):
            self.secrets = json.loads(Path(self.options["--secrets"]).read_bytes())
        task = "task_" + os.environ["SLURM_ARRAY_TASK_ID"] if "SLURM_ARRAY_TASK_ID" in os.environ else ""
        self.folder = Path(scratch(), self.job["run_id"] + task, os.environ.get("SLURMD_NODENAME", "node") + ".boot")

    def hide(self, text: str) -> str:
        """The text without secrets, in each form that a URL or an error may have; the longest are replaced first."""
        given = [value.strip().lstrip("?") for kind in self.secrets.values() for value in kind.values()]
        given = [form(one) for one in given + re.findall(r"sig=([^&\s]+)", " ".join(given)) for form in (str, unquote)]
        given += [quote(value, safe=safe) for value in given for safe in ("", IN_URLS)]
        for value in sorted({*given} - {""}, key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    def fetch(self, container: str, path: str, target: Path, limit: int) -> None:
        """Fetch a blob of at most ``limit`` bytes (without a proxy for this machine), or a file of this node."""
        import urllib.request  # late: it is half of this program's work, and most of a node's processes fetch nothing

        sas, until, problem, status = self.secrets.get("sas", {}), time.monotonic() + DEADLINE, "", 0
        if container.startswith(MOUNTED):
            return save(Path(container[len(MOUNTED) :]).open("rb"), target, limit, until)
        if container not in sas:
            raise ValueError(f"no access to {container} was handed over")
        url = quote(f"{container}/{quote(path)}?{sas[container].strip().lstrip('?')}", safe=IN_URLS)
        request = urllib.request.Request(url, headers={"x-ms-version": API_VERSION})
        proxies = urllib.request.ProxyHandler({} if re.match(r"\w+://(localhost|127[.\d]+|\[::1])[:/]", url) else None)
        for attempt in range(TRIES):
            try:
                return save(urllib.request.build_opener(proxies).open(request, timeout=SILENCE), target, limit, until)
            except OSError as error:
                status, problem = getattr(error, "code", 0), f"{getattr(error, 'reason', error)}"
                if 0 < status < 500 and status not in (408, 429):
                    break
            time.sleep(0.25 * 2**attempt)
        raise ValueError(f"cannot read {path}: {problem or 'no answer'} (HTTP {status})")

    def unpacked(self) -> Path:
        """The folder of the unpacked node archive, which later processes on this node verify and use, too."""
        archive, zipped, place = self.job["node_archive"], self.folder / "node.zip", self.folder / "node"
        with self.locked():
            if sha256(zipped) != archive["digest"]:
                self.take()
            if sha256(zipped) != archive["digest"]:
                self.fetch(archive["container"], archive["path"], zipped, int(archive["size"]))
            if sha256(zipped) != archive["digest"]:
                raise ValueError(f"{archive['path']} is not what the job was submitted with: its SHA-256 differs")
            with zipfile.ZipFile(zipped) as source:
                if not is_whole(source, place):
                    shutil.rmtree(place, ignore_errors=True)
                    source.extractall(place)
        return place

    def take(self) -> None:
        """Copy what another task of the job has on this node: unpacked, and compiled by now."""
        for other in self.folder.parent.parent.glob(f"{self.job['run_id']}task_*/{self.folder.name}"):
            with suppress(OSError, ValueError):
                own(own(other.parent) / other.name)
                shutil.copytree(other / "node", self.folder / "node")
                shutil.copyfile(other / "node.zip", self.folder / "node.zip")
                return

    def locked(self) -> Any:
        """A lock between the processes of this node; the kernel releases it when its holder dies."""
        lock = (own(own(self.folder.parent) / self.folder.name) / "lock").open("a")
        fcntl.flock(lock, fcntl.LOCK_EX)
        return lock


def scratch() -> str:
    """The folder of jobs on this node. Its name in /tmp is predictable: another user may have created it."""
    with suppress(OSError, ValueError):
        return os.environ.get("BLOBSYNC_SCRATCH") or str(own(Path(tempfile.gettempdir(), f"blobsync-{os.getuid()}")))
    return os.path.expanduser("~/.local/state/blobsync/scratch")


def own(folder: Path) -> Path:
    """Make the folder if it is missing; raises unless only we can write to it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ValueError(f"others may write to {folder}; name another place in runtime: {{scratch: DIR}}")
    return folder


def save(source: Any, target: Path, limit: int, until: float) -> None:
    with source, target.open("wb") as sink:
        for chunk in iter(lambda: source.read(1 << 20), b""):
            if sink.write(chunk) and (sink.tell() > limit or time.monotonic() > until):
                raise ValueError(f"{target.name} has more than {limit:,} bytes, or takes longer than {DEADLINE:.0f} s")
        if getattr(source, "length", 0):
            raise OSError(f"the answer broke off after {sink.tell():,} bytes")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def is_whole(source: zipfile.ZipFile, folder: Path) -> bool:
    """Whether the folder holds these files, and no other module."""
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    known = {name: path.read_bytes() for name, path in there.items() if "__pycache__" not in path.parts}
    return known == {name: source.read(name) for name in source.namelist()}


def main(argv: List[str]) -> int:
    # A scheduler's warning is held until the program can handle it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGUSR2))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    boot = Boot(argv)
    try:
        if sys.version_info < OLDEST:
            raise ValueError(f"{sys.executable} is older than Python 3.8; name a newer one: runtime: {{python: PATH}}")
        if sys.version_info >= NEEDED:
            os.execv(sys.executable, [sys.executable, "-I", str(boot.unpacked()), *argv])
        return int(runpy.run_path(str(Path(__file__).with_name("old_python.py")))["main"](boot))
    except (Exception, SystemExit) as error:
        sys.stderr.write(f"blobsync: this node could not be made ready: {boot.hide(str(error))[:2000]}\n")
        if boot.verb != "exec":
            shutil.rmtree(boot.folder, ignore_errors=True)
            with suppress(OSError):
                boot.folder.parent.rmdir()
        return int(str(error)) if isinstance(error, SystemExit) else SETUP_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
