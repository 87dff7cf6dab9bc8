"""The file work on a login node, in another Python on this machine."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from blobsync.backends.login_node import LoginNode
from blobsync.base.errors import BackendUnavailableError, ConfigError, JobError, LostContactError
from blobsync.base.process import Completed, ProcessRunner
from tests.fakes.runner import ScriptedRunner


@pytest.fixture
def login() -> LoginNode:
    return LoginNode(ProcessRunner(), None, os.environ, sys.executable)


def test_files_are_written_for_their_owner_only(login: LoginNode, tmp_path: Path) -> None:
    folder = login.write(str(tmp_path / "runs" / "a b"), {"job.sh": "echo 'ü'\n"})
    assert (Path(folder) / "job.sh").read_text() == "echo 'ü'\n"
    assert stat.S_IMODE((Path(folder) / "job.sh").stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(folder).stat().st_mode) == 0o700


def test_a_home_folder_is_that_of_the_login_node(tmp_path: Path) -> None:
    login = LoginNode(ProcessRunner(), None, {**os.environ, "HOME": str(tmp_path)}, sys.executable)
    assert login.write("~/.blobsync/jobs/x", {}) == str(tmp_path.resolve() / ".blobsync" / "jobs" / "x")


def test_logs_are_found_and_read_by_range(login: LoginNode, tmp_path: Path) -> None:
    folder = Path(login.write(str(tmp_path / "run"), {"job.json": "{}"}))
    (folder / "user_logs" / "std_log.txt").write_bytes(b"a\xff\x00bc")
    (folder / "task_1" / "user_logs").mkdir(parents=True)
    (folder / "task_1" / "user_logs" / "std_log.txt").touch()
    logs = login.logs(str(folder))
    assert [(log.name, log.size) for log in logs] == [("task_1/user_logs/std_log.txt", 0), ("user_logs/std_log.txt", 5)]
    assert login.read(logs[1].handle, 1, 4) == b"\xff\x00b"
    assert login.read(logs[1].handle, 2, None) == b"\x00bc"
    with pytest.raises(JobError, match="No such file"):
        login.read(str(folder / "gone"), 0, None)


def test_a_folder_of_logs_that_cannot_be_read_is_not_an_empty_one(login: LoginNode, tmp_path: Path) -> None:
    assert login.logs(str(tmp_path / "none")) == ()
    (tmp_path / "run").symlink_to(tmp_path / "run")
    with pytest.raises(JobError, match=f"Too many levels of symbolic links: {tmp_path}/run"):
        login.logs(str(tmp_path / "run"))


def test_exit_codes_and_the_end_of_secrets(login: LoginNode, tmp_path: Path) -> None:
    runs = [Path(login.write(str(tmp_path / name), {"secrets.json": "{}"})) for name in ("ok", "array", "none")]
    (runs[0] / "exit_code").write_text("0\n")
    for number, code in enumerate("07"):
        (runs[1] / f"task_{number}").mkdir()
        (runs[1] / f"task_{number}" / "exit_code").write_text(code)
    answers = login.exit_codes([str(run) for run in runs], [str(runs[0])])
    assert [answer and answer.exit_code for answer in answers] == [0, 7, None]
    assert [(run / "secrets.json").exists() for run in runs] == [False, True, True]


def test_a_job_has_begun_when_a_process_of_it_or_of_a_task_is_up(login: LoginNode, tmp_path: Path) -> None:
    for name in ("one/up/0", "array/task_3/up/0", "empty/up"):
        (tmp_path / name).mkdir(parents=True)
    names = ("one", "array", "empty", "none", "[oa]*")
    assert login.begun([str(tmp_path / name) for name in names]) == [True, True, False, False, False]


@pytest.mark.parametrize(("age", "stays"), [(None, True), (60, True), (2 * 86_400, False)])
@pytest.mark.parametrize("task", ["", "task_3"])
def test_a_forgotten_job_that_says_nothing_any_more_loses_its_secrets(
    login: LoginNode, tmp_path: Path, age: int | None, stays: bool, task: str
) -> None:
    run = Path(login.write(str(tmp_path / "run"), {"secrets.json": "{}"}))
    if age is not None:
        log = run / task / "system_logs" / "node_0.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("heartbeat")
        os.utime(log, (time.time() - age, time.time() - age))
    assert login.exit_codes([str(run)]) == [None]
    assert (run / "secrets.json").exists() is stays


def test_a_forgotten_job_that_wrote_its_exit_code_loses_its_secrets(login: LoginNode, tmp_path: Path) -> None:
    run = Path(login.write(str(tmp_path / "run"), {"secrets.json": "{}"}))
    (run / "exit_code").write_text("3\n")
    assert [answer and answer.exit_code for answer in login.exit_codes([str(run)])] == [3]
    assert not (run / "secrets.json").exists()


def test_everything_on_a_login_node_is_made_for_its_owner_only(login: LoginNode, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = Path(login.write(str(tmp_path / "new" / "run"), {"secrets.json": "{}"}))
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder, *folder.iterdir())}
    assert {path.name: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


def test_a_file_that_was_there_lends_neither_its_mode_nor_its_place(login: LoginNode, tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir(mode=0o777)
    (run / "open.json").write_text("old")
    (run / "open.json").chmod(0o666)
    (run / "secrets.json").symlink_to(elsewhere)
    with (run / "open.json").open() as held:
        login.write(str(run), {"open.json": "new", "secrets.json": "{}"})
        assert held.read() == "old"
    assert not elsewhere.exists()
    assert {stat.S_IMODE((run / name).lstat().st_mode) for name in ("open.json", "secrets.json")} == {0o600}
    assert stat.S_IMODE(run.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_a_folder_of_another_user_gets_no_secret(login: LoginNode, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    os.chown(run, 65534, 65534)
    with pytest.raises(JobError, match="belongs to another user"):
        login.write(str(run), {"secrets.json": "{}"})
    assert not list(run.iterdir())


@pytest.mark.parametrize(
    "host",
    [
        "-oProxyCommand=evil",
        "me@-oProxyCommand=evil",
        "a b",
        "",
        "me@host\nother",
        "-",
        "host;id",
        "me@host -v",
        "$(id)",
    ],
)
def test_what_is_no_host_is_not_given_to_ssh(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LoginNode(ProcessRunner(), host, {}, "python3")
    assert caught.value.key == "ssh"


@pytest.mark.parametrize(
    "host", ["login", "me@login.example.org", "ssh://me@10.0.0.1:2222", "me@::1", "ssh://me@[::1]:22", "my_alias-2"]
)
def test_hosts_stand_where_ssh_takes_no_option(host: str) -> None:
    argv = LoginNode(ProcessRunner(), host, {}, "/opt/python/bin/python3.11").argv(("squeue", "-h"))
    assert argv == ("ssh", "-o", "BatchMode=yes", "--", host, "squeue -h")


@pytest.mark.parametrize("program", ["./evil.sh", "evil/run.sh", "../x", "-c", "", "python3; id"])
def test_a_program_of_the_project_does_no_file_work_elsewhere(program: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LoginNode(ProcessRunner(), "me@login", {}, program)
    assert caught.value.key == "interpreter_path"


def test_file_work_on_this_machine_runs_no_program_that_a_project_names(tmp_path: Path) -> None:
    evil = tmp_path / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    evil.chmod(0o755)
    LoginNode(ProcessRunner(), None, os.environ, str(evil)).exit_codes([str(tmp_path)])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "said", ["[]", "{}", '{"answer": 5}', '{"answer": [[1]]}', '{"answer": {"a": "b"}}', "\x1b[2J", "1e999"]
)
def test_an_answer_of_another_form_is_one_sentence(said: str) -> None:
    login = LoginNode(ScriptedRunner(lambda call: Completed(0, said, "")), "me@login", {}, "python3")
    for look in (lambda: login.find("a"), lambda: login.logs("a"), lambda: login.exit_codes(["a"])):
        with pytest.raises(JobError, match="file access on me@login returned an invalid response") as caught:
            look()
        assert caught.value.hint and "\x1b" not in caught.value.message


_SSH = """#!/bin/sh
for word; do last=$word; done
exec sh -c "$last"
"""


@pytest.mark.parametrize("ssh", [None, "me@login"])
def test_a_programs_own_exit_code_is_no_lost_connection(ssh: str | None, tmp_path: Path) -> None:
    for name, text in {
        "ssh": _SSH,
        "rejects": "#!/bin/sh\necho 'rejects: error: Invalid --time' >&2\nexit 255\n",
        "fails": "#!/bin/sh\nexit 200\n",
        "killed": "#!/bin/sh\nkill -9 $$\n",
        "wraps": "#!/bin/sh\nkilled\n",
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    login = LoginNode(ProcessRunner(), ssh, environ, sys.executable)
    rejected = login.run(("rejects", "a b", "$HOME"))
    assert rejected == Completed(1 if ssh else 255, "", "rejects: error: Invalid --time\n")
    assert login.run(("fails",)).returncode == 200
    for killed in ("killed", "wraps"):
        with pytest.raises(LostContactError, match=rf"{killed} was killed on .* \(signal 9\)"):
            login.run((killed,))
    with pytest.raises(BackendUnavailableError, match=r"absent (is not|cannot be run) on"):
        login.run(("absent",))
