"""Which azcopy is chosen, and the message when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from blobsync.azcopy.binary import Found, find_azcopy, managed_path, problem, remedy
from blobsync.base.errors import AzcopyError, AzcopyNotFoundError, AzcopyVersionError, ProcessError
from blobsync.base.process import Completed
from tests.fakes.runner import Call, ScriptedRunner


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def says(text: str, code: int = 0, stderr: str = "") -> ScriptedRunner:
    return ScriptedRunner(lambda call: Completed(code, text, stderr))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "HOME": str(tmp_path / "home"),
        "XDG_DATA_HOME": str(tmp_path / "share"),
        "PATH": f"{tmp_path / 'nothing'}:{tmp_path / 'bin'}",
        "AZCOPY_LOG_LOCATION": "/elsewhere",
    }


GOOD = "azcopy version 10.32.2\n"


def test_the_order_of_the_places(tmp_path: Path, environ: dict[str, str]) -> None:
    places = [
        tmp_path / "home" / "code" / "azcopy" / "azcopy",
        tmp_path / "bin" / "azcopy",
        managed_path(environ),
        tmp_path / "given",
    ]
    taken = []
    for path in places:
        program(path)
        if path.name == "given":
            environ["BLOBSYNC_AZCOPY"] = str(path)
        taken.append(find_azcopy(environ, runner=says(GOOD)))
        assert taken[-1].path == path
    assert taken[1] == Found(places[1], (10, 32, 2), "PATH")
    assert taken[1].version_text == "10.32.2"


def test_what_was_searched_is_reported(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(AzcopyNotFoundError) as caught:
        find_azcopy(environ, runner=says(GOOD))
    for place in (str(managed_path(environ)), "PATH", str(tmp_path / "home" / "code" / "azcopy" / "azcopy")):
        assert place in caught.value.message
    assert "blobsync azcopy install" in str(caught.value.hint)
    assert problem(environ, runner=says(GOOD)) == caught.value.message


def test_a_variable_that_names_nothing_is_an_error_at_once(tmp_path: Path, environ: dict[str, str]) -> None:
    program(tmp_path / "bin" / "azcopy")
    environ["BLOBSYNC_AZCOPY"] = str(tmp_path / "missing")
    with pytest.raises(AzcopyNotFoundError, match=r"BLOBSYNC_AZCOPY is .*missing, which is not a program"):
        find_azcopy(environ, runner=says(GOOD))


@pytest.mark.parametrize(
    ("printed", "sentence"),
    [
        ("azcopy version 10.31.1\n", "older than 10.32.2"),
        ("azcopy version 11.0.0\n", "works with version 10"),
        ("azcopy version 8.1.0\n", "works with version 10"),
    ],
)
def test_other_versions_are_refused(tmp_path: Path, environ: dict[str, str], printed: str, sentence: str) -> None:
    program(tmp_path / "bin" / "azcopy")
    with pytest.raises(AzcopyVersionError, match=sentence):
        find_azcopy(environ, runner=says(printed))


def test_newer_ones_are_taken(tmp_path: Path, environ: dict[str, str]) -> None:
    program(tmp_path / "bin" / "azcopy")
    assert find_azcopy(environ, runner=says("azcopy version 10.40.0\n")).version == (10, 40, 0)


@pytest.mark.parametrize(
    "stderr",
    [
        "azcopy: error while loading shared libraries: libsecret-1.so.0: cannot open shared object file: No such file",
        "Error loading shared library libsecret-1.so.0: No such file or directory (needed by azcopy)",
        "dyld[1]: Library not loaded: /opt/lib/libsecret-1.so.0",
    ],
)
def test_a_missing_library_is_answered_with_the_remedy(tmp_path: Path, environ: dict[str, str], stderr: str) -> None:
    program(tmp_path / "bin" / "azcopy")
    with pytest.raises(AzcopyError, match=r"the library libsecret-1\.so\.0 is missing") as caught:
        find_azcopy(environ, runner=says("", 127, stderr))
    for word in ("apt-get install libsecret-1-0", "dnf install libsecret", "conda install", "LD_LIBRARY_PATH"):
        assert word in str(caught.value.hint)


def test_another_missing_library_is_named() -> None:
    assert "libfoo.so.1" in remedy("libfoo.so.1")


def test_a_program_that_is_no_azcopy(tmp_path: Path, environ: dict[str, str]) -> None:
    program(tmp_path / "bin" / "azcopy")
    with pytest.raises(AzcopyError, match=r"does not report its version .*: hello"):
        find_azcopy(environ, runner=says("hello\n"))


def test_a_program_for_another_machine(tmp_path: Path, environ: dict[str, str]) -> None:
    def refuse(call: Call) -> Completed:
        raise ProcessError("cannot start azcopy: Exec format error")

    program(tmp_path / "bin" / "azcopy")
    with pytest.raises(AzcopyError, match=r"does not start: .*Exec format error"):
        find_azcopy(environ, runner=ScriptedRunner(refuse))


def test_asking_for_the_version_touches_nothing_of_the_users(tmp_path: Path, environ: dict[str, str]) -> None:
    program(tmp_path / "bin" / "azcopy")
    runner = says(GOOD)
    find_azcopy(environ, runner=runner)
    env = runner.calls[0].env or {}
    assert env["HOME"] == env["AZCOPY_LOG_LOCATION"] == env["AZCOPY_JOB_PLAN_LOCATION"]
    assert not env["HOME"].startswith(environ["HOME"])
    assert not Path(env["HOME"]).exists()
