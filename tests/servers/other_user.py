"""Starts programs as another user of this machine; needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

# The user nobody.
UID = 65534
_WAIT = "import os, sys\n{}print(flush=True)\nsys.stdin.read()"

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.isdir("/proc/self"), reason="only root on Linux reads what others run"
)


@contextmanager
def program_of_another_user(env: Mapping[str, str], *, as_root: bool = False) -> Iterator[int]:
    """Run a waiting program with this environment; yields its process id.

    ``as_root``: it is a set-user-ID program, like sudo, and runs as root.
    """
    with tempfile.TemporaryDirectory(prefix="blobsync-other-user-") as place:
        os.chmod(place, 0o755)  # The other user runs a program in it.
        program = Path(place, "program")
        shutil.copy(os.path.realpath(sys.executable), program)
        program.chmod(0o4755 if as_root else 0o755)
        code = _WAIT.format("os.setuid(0)\n" if as_root else "")
        with subprocess.Popen(
            [program, "-I", "-S", "-c", code], user=UID, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            if process.stdout.readline() != b"\n":
                pytest.skip("a copy of this Python does not run as another user")
            yield process.pid
            process.kill()
