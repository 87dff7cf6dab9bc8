"""Signals other than Ctrl-C that stop a command, in a process of their own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.waiting import wait_until

_PROGRAM = """
import os, signal, sys, time
from blobsync.base.stopping import stop_on_other_signals
stop_on_other_signals()
try:
    for _ in range(3):
        os.kill(os.getpid(), {number})
        time.sleep(0.01)
except KeyboardInterrupt:
    try:
        # Cleaning up.
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(0.01)
        print("stopped")
    except KeyboardInterrupt:
        print("stopped while it cleaned up")
else:
    print("went on")
"""


@pytest.mark.parametrize(
    ("number", "ignored", "said"),
    [
        pytest.param(signal.SIGHUP, False, "stopped", id="the end of the terminal, told twice"),
        pytest.param(signal.SIGHUP, True, "went on", id="below nohup"),
        pytest.param(signal.SIGTERM, True, "stopped", id="stopped below nohup"),
    ],
)
def test_what_stops_a_command_is_an_interrupt_and_nohup_is_obeyed(
    number: signal.Signals, ignored: bool, said: str
) -> None:
    before = signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        words = [sys.executable, "-c", _PROGRAM.format(number=int(number))]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.stdout.strip(), done.returncode) == (said, 0), done.stderr


_HANDLED = """
import os, signal
from blobsync.base.stopping import enable_ctrl_c, stop_on_other_signals
stop_on_other_signals()
try:
    os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    print("stopped once")
enable_ctrl_c()
print("went on")
"""


def test_a_signal_is_raised_once() -> None:
    """A program may call a command after one that a signal stopped."""
    done = subprocess.run([sys.executable, "-c", _HANDLED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("stopped once\nwent on\n", "")


_AT_THE_END = """
import atexit, os, signal, sys
from blobsync.__main__ import main

def called(frame, event, arg):
    if event == "call" and frame.f_code.co_name == "{telling}":
        os.kill(os.getpid(), signal.SIGTERM)

atexit.register(print, "stored")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    atexit.register(os.kill, os.getpid(), number)
sys.setprofile(called)
sys.exit(main())
"""


@pytest.mark.parametrize(("telling", "code"), [("", 2), ("fail", 130)])
def test_signals_after_the_result_and_while_it_is_told_cut_off_nothing(telling: str, code: int) -> None:
    words = [sys.executable, "-c", _AT_THE_END.format(telling=telling), "no-such-command"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("stored\n", code)
    assert "Traceback" not in done.stderr


_UNREAD = """
import atexit, contextlib, os, sys
from blobsync.__main__ import end
from blobsync.base.stopping import stop_on_other_signals
stop_on_other_signals()
os.set_blocking(1, False)
with contextlib.suppress(BlockingIOError):
    while True:
        os.write(1, bytes(4096))
os.set_blocking(1, True)
sys.stdout.write("what nobody reads")
atexit.register(os.write, 2, b"the end begins")
end(3)
"""


def test_a_program_whose_last_words_nobody_reads_can_be_ended() -> None:
    # With -E no variable takes away the buffer that is to be written at the end.
    words = [sys.executable, "-E", "-c", _UNREAD]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:

        def has_ended() -> bool:
            waiting.terminate()
            return waiting.poll() is not None

        assert waiting.stderr is not None
        assert waiting.stderr.read(3)
        assert wait_until(has_ended, seconds=60)
        assert waiting.returncode == -signal.SIGTERM
