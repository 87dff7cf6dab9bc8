"""``local`` and ``initc`` in a real container: Debian's docker, an image of this machine's own files, no registry."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from tests.e2e.test_jobs import Lab, lab
from tests.servers.docker_daemon import IMAGE, DockerDaemon
from tests.servers.docker_fixture import docker

__all__ = ["docker", "lab"]

pytestmark = [pytest.mark.e2e, pytest.mark.docker]

COMPILE = "cat /etc/hostname > /dev/null; echo built by $(id -u) with $1 $BUILT > made.bin\n"


def test_local_runs_in_the_image_with_all_folders_also_those_behind_links(
    lab: Lab, docker: DockerDaemon, tmp_path: Path
) -> None:
    lab.project.environ.update(docker.environ)
    disk = tmp_path / "disk" / "data"
    disk.parent.mkdir()
    (lab.project.root / "data").rename(disk)
    (lab.project.root / "data").symlink_to(disk)
    image = {"image": IMAGE, "args": ["--network=none"]}
    lab.configure("boxed", "local", use_custom_docker=True, docker=image)
    # A variable's value arrives, a program of this machine does not: it is another file system.
    lab.run("config", "trust-link", "data")
    line = "cat data/voc/a.txt > output/copy; echo $MY_TOKEN $LIST; cat /proc/1/comm; [ ! -e /usr/bin/perl ]"
    done = lab.run("-c", "boxed", "local", line)
    assert done.out.splitlines()[0] == "hush-hush a,b; c" and "not in" not in done.err
    assert (lab.project.root / "output" / "copy").read_bytes() == b"a picture"
    assert lab.project.run("-c", "boxed", "local", "cat nothing; exit 7").code == 7
    assert docker.client("ps", "-aq").stdout == b""


def test_initc_compiles_in_the_image_and_packs_what_it_made(lab: Lab, docker: DockerDaemon) -> None:
    lab.project.environ.update(docker.environ)
    image = {"image": IMAGE, "args": ["--env", "BUILT=here"]}
    lab.configure("boxed", "local", use_custom_docker=True, docker=image, compile_args="--fast")
    (lab.project.root / "compile.aml.sh").write_text(COMPILE)
    lab.run("-c", "boxed", "initc")
    with zipfile.ZipFile(io.BytesIO(lab.container.get("mine/code.zip"))) as archive:
        assert archive.read("made.bin") == b"built by 0 with --fast here\n"
    assert not (lab.project.root / "made.bin").exists()
    (lab.project.root / "compile.aml.sh").write_text("exit 3\n")
    failed = lab.run("--json", "-c", "boxed", "initc", code=1).errors[0]
    assert "ended with 3" in failed["message"] and "nothing was uploaded" in failed["message"]
