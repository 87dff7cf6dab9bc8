"""Signals other than Ctrl-C that stop a command, in a process of their own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

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


_AT_THE_END = """
import atexit, os, signal
from blobsync.__main__ import end
from blobsync.base.stopping import enable_ctrl_c, stop_on_other_signals
stop_on_other_signals()
enable_ctrl_c()
atexit.register(print, "stored")
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    atexit.register(os.kill, os.getpid(), number)
end(3)
"""


def test_a_signal_after_the_result_changes_neither_the_exit_code_nor_what_is_stored() -> None:
    done = subprocess.run([sys.executable, "-c", _AT_THE_END], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("stored\n", "", 3)
