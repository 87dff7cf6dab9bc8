"""The docker options that a project may use on this machine without the user's agreement."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from blobsync.base.errors import ConfigError, UntrustedDockerError
from blobsync.config.model import Cluster, Docker
from blobsync.config.trusted_docker import (
    TRUSTED_DOCKER,
    DockerArgs,
    Words,
    demand_docker,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "project/data").mkdir(parents=True)
    (tmp_path / "project/out").symlink_to("/etc")
    return tmp_path / "project"


def reaching(root: Path, *words: str) -> str | None:
    words = tuple(word.replace("ROOT", str(root)) for word in words)
    found = DockerArgs(words, root, "aml", "aml.yaml", {"OWN": "x"}).reaching
    return None if found is None else found.replace(str(root), "ROOT")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--gpus", "all"),
        ("--gpus=all", "--ipc=host", "--shm-size", "8g", "--ulimit", "memlock=-1", "--ulimit=stack=67108864"),
        ("-e", "NCCL_DEBUG=INFO", "--env", "A=--privileged", "-eB=1", "-e", "OWN", "--env=C=2"),
        ("--init", "--rm", "-m", "8g", "--memory=8g", "--cpus", "2", "-w", "/workspace"),
        ("-v", "ROOT/data:/data", "--volume=ROOT:/project:ro", "-v/of-its-own", "-v", "/of-its-own"),
    ],
)
def test_options_that_stay_inside_need_no_word(root: Path, words: tuple[str, ...]) -> None:
    assert reaching(root, *words) is None


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--privileged",), "--privileged"),
        (("--gpus", "all", "--privileged=true"), "--privileged=true"),
        (("-v", "/:/host"), "-v /:/host"),
        (("-v/:/host",), "-v/:/host"),
        (("-v=/:/host",), "-v=/:/host"),
        (("--volume", "/:/host"), "--volume /:/host"),
        (("--volume=/var/run/docker.sock:/sock",), "--volume=/var/run/docker.sock:/sock"),
        # A link in the project, and a path with the same prefix.
        (("-v", "ROOT/out:/x"), "-v ROOT/out:/x"),
        (("-v", "ROOT/../other:/x"), "-v ROOT/../other:/x"),
        (("-v", "ROOT-other:/x"), "-v ROOT-other:/x"),
        # Relative to docker's folder, or shared with others.
        (("-v", "./data:/x"), "-v ./data:/x"),
        (("-v", "volume:/x"), "-v volume:/x"),
        (("--mount", "type=bind,source=/,target=/x"), "--mount"),
        (("--ipc=container:other",), "--ipc=container:other"),
        (("--pid=host",), "--pid=host"),
        (("--cap-add", "SYS_ADMIN"), "--cap-add"),
        (("--device=/dev/sda",), "--device=/dev/sda"),
        (("--env-file", "/etc/shadow"), "--env-file"),
        # The user's own value.
        (("-e", "AWS_SECRET_ACCESS_KEY"), "-e AWS_SECRET_ACCESS_KEY"),
        (("--env=AZURE_CLIENT_SECRET",), "--env=AZURE_CLIENT_SECRET"),
        # Another option as the value of a known one, several letters in one word, another image.
        (("-itv", "/:/host"), "-itv"),
        (("--rm=x",), "--rm=x"),
        (("other/image",), "other/image"),
        (("--gpus",), "--gpus"),
        (("--",), "--"),
        (("",), ""),
    ],
)
def test_what_reaches_beyond_the_project_or_is_not_known_is_found(
    root: Path, words: tuple[str, ...], found: str
) -> None:
    assert reaching(root, *words) == found
    image = Docker("img", args=tuple(word.replace("ROOT", str(root)) for word in words))
    cluster = Cluster("eu", "eu.yaml", root, docker=image)
    with pytest.raises(UntrustedDockerError) as refused:
        demand_docker(DockerArgs.of(cluster), {"XDG_CONFIG_HOME": str(root.parent / "config")})
    assert refused.value.exit_code == 2
    assert refused.value.options == cluster.docker.args
    assert "blobsync -c eu config trust-docker" in str(refused.value.hint)


def test_trust_is_for_exactly_these_options_of_this_project(root: Path, tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    words = ("--privileged", "--gpus", "all")
    args = DockerArgs(words, root, "aml", "aml.yaml", ())
    TRUSTED_DOCKER.change(root, environ, lambda _: {words})
    assert TRUSTED_DOCKER.load(root, environ) == {words}
    demand_docker(args, environ)
    for other in (
        args._replace(words=("--privileged",)),
        args._replace(words=("--gpus", "all", "--privileged")),
        args._replace(words=(*words, "-v", "/:/host")),
        args._replace(root=tmp_path),
    ):
        with pytest.raises(UntrustedDockerError):
            demand_docker(other, environ)
    file = TRUSTED_DOCKER.file(environ)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    TRUSTED_DOCKER.change(root, environ, lambda _: ())
    assert TRUSTED_DOCKER.load(root, environ) == frozenset()
    file.write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        TRUSTED_DOCKER.load(root, environ)


def test_two_commands_at_once_do_not_undo_each_other(root: Path, tmp_path: Path) -> None:
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    other = threading.Thread(target=TRUSTED_DOCKER.change, args=(root, environ, lambda known: known | {("--a",)}))

    def meanwhile(known: frozenset[Words]) -> frozenset[Words]:
        other.start()
        # It waits for its turn; without one it would be done by then.
        other.join(0.5)
        return known | {("--b",)}

    TRUSTED_DOCKER.change(root, environ, meanwhile)
    other.join()
    assert TRUSTED_DOCKER.load(root, environ) == {("--a",), ("--b",)}
