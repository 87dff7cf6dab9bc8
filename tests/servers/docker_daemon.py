"""A real docker daemon for tests: Debian's docker.io, with everything below one directory and without a network.

Its image is made of files of this machine, so that nothing is downloaded.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

READY_SECONDS = 90.0
IMAGE = "of-this-machine:1"
_CAP_SYS_ADMIN = 21
# Programs in the image; their libraries are added.
PROGRAMS = ("sh", "bash", "cat", "id", "mkdir", "env")


def missing_docker() -> str:
    """What this machine lacks to run containers; empty if nothing."""
    if os.geteuid() != 0 or sys.platform != "linux":
        return "a docker daemon for tests needs Linux and root"
    if not _may_mount():
        return "a docker daemon for tests needs the right to mount, which a container without privileges does not have"
    missing = [name for name in ("dockerd", "containerd", "docker") if _found(name) is None]
    return f"there is no {missing[0]} (Debian: apt-get install docker.io)" if missing else ""


class DockerDaemon:
    """A daemon that runs while its block lasts."""

    def __init__(self, base: Path, socket_folder: Path) -> None:
        """``socket_folder`` must have a short path: that of a socket has at most 107 characters."""
        self._base, self._socket = base, socket_folder / "docker.sock"
        base.mkdir(parents=True, exist_ok=True)
        self._daemon: subprocess.Popen[bytes] | None = None

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment for clients."""
        return {"DOCKER_HOST": f"unix://{self._socket}"}

    def __enter__(self) -> DockerDaemon:
        try:
            self._start()
            self._make_image()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def client(self, *words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run a command of docker's client."""
        environ = {**os.environ, **self.environ}
        return subprocess.run(["docker", *words], env=environ, input=given, capture_output=True, timeout=120)

    def stop(self) -> None:
        """End the daemon and its containerd."""
        if self._daemon:
            self._daemon.terminate()
            try:
                self._daemon.wait(60)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait()
            self._daemon = None
            # After a container with the machine's network the daemon leaves a mount of that.
            for path in (self._socket.parent / "exec" / "netns").glob("*"):
                subprocess.run(["umount", str(path)], capture_output=True)

    def _start(self) -> None:
        # No rules and no bridge in this machine's network; a storage driver for any file system.
        words = ("--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs")
        places = (f"--exec-root={self._socket.parent}/exec", f"--data-root={self._base}/data")
        with (self._base / "dockerd.log").open("wb") as sink:
            self._daemon = subprocess.Popen(
                [
                    str(_found("dockerd")),
                    *words,
                    *places,
                    f"--pidfile={self._base}/pid",
                    "-H",
                    f"unix://{self._socket}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        until = time.monotonic() + READY_SECONDS
        while self.client("version").returncode:
            if self._daemon.poll() is not None or time.monotonic() > until:
                said = (self._base / "dockerd.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"dockerd did not start: {said}")
            time.sleep(0.1)

    def _make_image(self) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name in PROGRAMS:
                program = str(_found(name))
                _add(archive, f"/bin/{name}", program)
                for library in _libraries(program):
                    _add(archive, library, library)
        made = self.client("import", "-", IMAGE, given=buffer.getvalue())
        if made.returncode:
            raise RuntimeError(f"docker import failed: {made.stderr.decode(errors='replace')}")


def _may_mount() -> bool:
    """Whether this process has CAP_SYS_ADMIN: https://man7.org/linux/man-pages/man7/capabilities.7.html."""
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return bool(effective >> _CAP_SYS_ADMIN & 1)


def _add(archive: tarfile.TarFile, name: str, path: str) -> None:
    if name.lstrip("/") not in archive.getnames():
        archive.add(os.path.realpath(path), name.lstrip("/"))


def _libraries(program: str) -> Sequence[str]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return [word for word in told.split() if word.startswith("/")]


def _found(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")
