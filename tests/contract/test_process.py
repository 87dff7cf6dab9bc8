"""Programs are started, read, fed and stopped as ``ProcessRunner`` says; the children are real."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from blobsync.base.errors import ProcessError
from blobsync.base.process import ProcessRunner
from tests.waiting import wait_until

RUNNER = ProcessRunner(terminate_after=0.3, kill_after=0.3)
# Gives a child on a busy machine time to end by a signal that it does not ignore.
_PATIENCE = 60.0

# Says when it is ready, so that no test sends a signal too early.
IGNORES = """
import signal, sys, time
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


def python(code: str, *words: str) -> list[str]:
    return [sys.executable, "-c", code, *words]


def test_run_gives_both_streams_and_the_code() -> None:
    done = RUNNER.run(python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"))
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_run_feeds_input_environment_and_folder(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.stdin.read() + os.environ['WORD'] + os.getcwd())"
    done = RUNNER.run(python(code), input="text ", env={**os.environ, "WORD": "här "}, cwd=tmp_path)
    assert done.stdout == f"text här {tmp_path}\n"


def test_run_with_no_input_does_not_wait_for_the_terminal() -> None:
    assert RUNNER.run(python("import sys; print(len(sys.stdin.read()))")).stdout == "0\n"


def test_run_replaces_bytes_that_are_not_utf8() -> None:
    done = RUNNER.run(python("import sys; sys.stdout.buffer.write(b'a\\xffb')"))
    assert done.stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_run_reads_more_than_a_pipe_holds_from_both_streams() -> None:
    code = "import sys; sys.stderr.write('e' * 300000); sys.stderr.flush(); sys.stdout.write('o' * 300000)"
    done = RUNNER.run(python(code))
    assert (len(done.stdout), len(done.stderr)) == (300_000, 300_000)


def test_run_ends_a_program_that_takes_too_long() -> None:
    started = time.monotonic()
    with pytest.raises(ProcessError, match=r"did not finish within 0\.5 seconds"):
        RUNNER.run(python("import time; time.sleep(600)"), timeout=0.5)
    assert time.monotonic() - started < _PATIENCE


@pytest.mark.parametrize("how", ["run", "start", "attach"])
def test_a_program_that_is_not_there_is_named_without_its_arguments(how: str) -> None:
    with pytest.raises(ProcessError) as caught:
        getattr(RUNNER, how)(["/nowhere/such-program", "?sig=SENTINEL"])
    assert str(caught.value) == "cannot start such-program: No such file or directory"


def test_lines_come_while_the_child_runs_and_it_hears_what_is_sent() -> None:
    code = "import sys\nfor line in sys.stdin: print('heard', line.strip(), flush=True)"
    child = RUNNER.start(python(code))
    lines = child.lines()
    child.send_line("one")
    assert next(lines) == "heard one"
    child.send_line("two")
    assert next(lines) == "heard two"
    assert child.stop() != 0
    child.send_line("to nobody")


def test_standard_input_stays_open() -> None:
    code = "import select, sys; print(select.select([sys.stdin], [], [], 0.5)[0], flush=True)"
    child = RUNNER.start(python(code))
    assert list(child.lines()) == ["[]"]
    assert child.wait() == 0


def test_a_child_that_floods_its_error_stream_goes_on_and_its_last_words_are_kept() -> None:
    child = RUNNER.start(python("import sys; sys.stderr.write('x' * 500000 + ' the end'); print('done')"))
    assert list(child.lines()) == ["done"]
    assert child.wait() == 0
    tail = child.stderr_tail()
    assert tail.endswith("x the end")
    assert len(tail) < 20_000


def test_wait_gives_up_after_its_time_and_the_child_lives_on() -> None:
    child = RUNNER.start(python(IGNORES))
    # A signal while Python starts ends it with a code of its own.
    assert next(child.lines()) == "ready"
    assert child.wait(timeout=0.2) is None
    os.kill(child.pid, 0)
    assert child.stop() < 0


@pytest.mark.parametrize(
    ("ignored", "ends_by"),
    [
        ([], None),
        (["SIGINT"], signal.SIGTERM),
        (["SIGINT", "SIGTERM"], signal.SIGKILL),
    ],
)
def test_stop_asks_then_terminates_then_kills(ignored: list[str], ends_by: signal.Signals | None) -> None:
    after = [0.3 if name in ignored else _PATIENCE for name in ("SIGINT", "SIGTERM")]
    child = ProcessRunner(terminate_after=after[0], kill_after=after[1]).start(python(IGNORES, *ignored))
    assert next(child.lines()) == "ready"
    code = child.stop()
    assert code == -ends_by if ends_by else code in (1, 130, -signal.SIGINT)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_stop_of_a_child_that_ended_gives_its_code() -> None:
    child = RUNNER.start(python("raise SystemExit(5)"))
    assert list(child.lines()) == []
    assert child.stop() == 5


def test_stop_reaches_what_the_child_started() -> None:
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    child = RUNNER.start(python(code))
    grandchild = int(next(child.lines()))
    child.stop()
    line = Path(f"/proc/{grandchild}/cmdline")
    assert wait_until(lambda: not line.exists() or not line.read_bytes()), "the grandchild is alive"


def test_a_detached_child_writes_its_log_and_has_no_input(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    code = "import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid()); print('e', file=sys.stderr)"
    pid = RUNNER.spawn_detached(python(code), log=log, cwd=tmp_path)
    os.waitpid(pid, 0)
    assert set(log.read_text().splitlines()) == {"before", "'' True", "e"}


def test_a_detached_child_gets_its_input_whole_and_one_that_ends_at_once_does_not_matter(tmp_path: Path) -> None:
    log, text = tmp_path / "log", "ä" * 200_000
    os.waitpid(RUNNER.spawn_detached(python("import sys; print(len(sys.stdin.read()))"), log=log, input=text), 0)
    os.waitpid(RUNNER.spawn_detached(python("print('over')"), log=log, input=text), 0)
    assert log.read_text().splitlines() == ["200000", "over"]


def test_attach_gives_the_code() -> None:
    assert RUNNER.attach(python("raise SystemExit(9)")) == 9


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_attach_gives_the_code_of_a_shell_for_a_signal(number: signal.Signals) -> None:
    ending = f"import os, signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), {int(number)})"
    assert RUNNER.attach(python(ending)) == 128 + number


def test_threads_may_read_and_stop_at_once() -> None:
    child = RUNNER.start(
        python("import itertools, time\nfor n in itertools.count(): print(n, flush=True); time.sleep(0.01)")
    )
    seen: list[str] = []

    def read() -> None:
        seen.extend(child.lines())

    reader = threading.Thread(target=read)
    reader.start()
    assert wait_until(lambda: seen)
    child.stop()
    reader.join(timeout=_PATIENCE)
    assert not reader.is_alive()


_IGNORING = """
import signal, sys
from blobsync.base.stopping import ignore_ctrl_c_alone
from blobsync.base.process import ProcessRunner
signal.signal(signal.SIGINT, signal.SIG_IGN)
ignore_ctrl_c_alone()
signal.raise_signal(signal.SIGINT)
status = ("grep", "SigIgn", "/proc/self/status")
runner = ProcessRunner()
print(*runner.start(status).lines(), flush=True)
sys.exit(runner.attach(status))
"""


def test_where_ctrl_c_is_ignored_only_what_has_the_terminal_ignores_it_too() -> None:
    done = RUNNER.run(python(_IGNORING))
    assert done.returncode == 0, done.stderr
    # Bit 0 is that of signal 1.
    apart, attached = (int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1 for line in done.stdout.splitlines())
    assert (apart, attached) == (0, 1)
