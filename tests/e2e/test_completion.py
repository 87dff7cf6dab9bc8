"""The TAB key in real shells: what bash, zsh and fish get from blobsync and do with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.world import Container, Project, write_tree
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

# Each prints one offer a line, with its description where the shell has one.
_SHELLS = {
    "bash": """
eval "$(_BLOBSYNC_COMPLETE=source_bash blobsync)"
COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _blobsync_completion blobsync; printf '%s\\n' "${COMPREPLY[@]}"
""",
    "zsh": """
compdef() { : }
eval "$(_BLOBSYNC_COMPLETE=source_zsh blobsync)"
# What zsh's own _arguments does with an action in two pairs of brackets.
_arguments() { local -a offers; eval "offers=( ${${1#*\\(\\(}%\\)\\)} )"; print -rl -- $offers }
_files() { : }
words=("$@"); CURRENT=$#; _blobsync_completion
""",
    "fish": """
_BLOBSYNC_COMPLETE=source_fish blobsync | source
complete -C "$argv"
""",
}


def _offers(shell: str, project: Project, *words: str) -> dict[str, str]:
    """What ``shell`` offers for the last word, with its descriptions."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell}")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    flags = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    # The word after -c is $0, but of fish $argv[1].
    extra = [] if shell == "fish" else [shell]
    done = subprocess.run(
        [program, *flags, "-c", _SHELLS[shell], *extra, *words],
        cwd=project.root,
        env={**os.environ, **project.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert "blobsync: " not in done.stderr, done
    between = {"bash": "\0", "zsh": ":", "fish": "\t"}[shell]
    found = (line.partition(between) for line in done.stdout.splitlines() if line)
    return {word.strip(): said for word, _, said in found}


@pytest.mark.parametrize("shell", ["bash", *(pytest.param(shell, marks=pytest.mark.soak) for shell in ("zsh", "fish"))])
def test_commands_options_values_clusters_and_names_of_the_container_are_offered(
    shell: str, project: Project, container: Container
) -> None:
    project.configure(container)
    project.configure(container, cluster="eu")
    write_tree(project.data, {"voc19/a": b"1"})
    container.put("data/voc20/b", b"2")
    # Names that a shell would read are never put on its command line.
    for hostile in ("vo$(touch pwned)", "vo`touch pwned`", "vo; touch pwned", "vo'\"x"):
        container.put(f"data/{hostile}", b"3")
    names: dict[str, str] = {}

    def container_has_answered() -> bool:
        # It may be too late for one key, and is not asked again for some seconds.
        names.clear()
        names.update(_offers(shell, project, "blobsync", "d", "data/vo"))
        return "data/voc20/" in names

    assert wait_until(container_has_answered, seconds=90), names
    assert set(names) == {"data/voc19/", "data/voc20/"}
    assert not list(project.root.rglob("pwned"))
    words = _offers(shell, project, "blobsync", "sta")
    assert set(words) == {"status", "stat"}
    assert set(_offers(shell, project, "blobsync", "check")) == {"checkpoint", "checkpoints"}
    assert set(_offers(shell, project, "blobsync", "checkpoint", "")) == {"done"}
    assert "status" in _offers(shell, project, "blobsync", "nope", "")
    assert set(_offers(shell, project, "blobsync", "kee")) == {"keep"}
    assert {"ls", "stop", "data/"} <= set(_offers(shell, project, "blobsync", "keep", ""))
    assert set(_offers(shell, project, "blobsync", "keep", "data/vo")) == {"data/voc19/", "data/voc19/a"}
    assert set(_offers(shell, project, "blobsync", "keep", "data", "--de")) == {"--detach"}
    assert set(_offers(shell, project, "blobsync", "keep", "--until")) == {"--until-idle"}
    if shell != "bash":
        assert names["data/voc20/"].startswith("in the container") and names["data/voc19/"].startswith("here")
        assert words["stat"].startswith("Show one path")
    assert set(_offers(shell, project, "blobsync", "u", "data/vo")) == {"data/voc19/", "data/voc19/a"}
    assert set(_offers(shell, project, "blobsync", "u", "--keep", "")) == {"local", "remote", "both"}
    assert set(_offers(shell, project, "blobsync", "ls", "-c", "")) == {"aml", "eu"}


def test_jobs_are_offered_with_their_commands_and_plans_by_their_content(
    project: Project, container: Container
) -> None:
    project.configure(container, extra={"platform": "local"})
    write_tree(project.data, {"a": b"1"})
    assert project.run("plan", "u", "data", "--save", "first.plan").code == 0
    assert project.run("submit", "--wait", "echo", "two words").code == 0
    shell = "fish" if shutil.which("fish") else "bash"
    found = _offers(shell, project, "blobsync", "logs", "")
    assert len(found) == 1, found
    [(job, said)] = found.items()
    assert project.json("q").data["jobs"][0]["job_id"].endswith(f"_{job}")
    assert shell == "bash" or said == "Completed, echo two words"
    assert project.run("apply", "first.plan").code == 0
    transfer = project.json("history", "--transfers").data["transfers"][0]["id"]
    past = _offers(shell, project, "blobsync", "history", "")
    assert set(past) == {job, transfer} and (shell == "bash" or past[transfer] == "upload done, data")
    assert "first.plan" in _offers(shell, project, "blobsync", "apply", "fi")
