"""Exit codes: of a command, of a job on its node, and of a program that a signal ended."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit code of the process; scripts rely on these numbers. ``sentence`` says what each means."""

    sentence: str

    # The default is there for ``ExitCode(3)`` as well, which looks one up by its value.
    def __new__(cls, value: int, sentence: str = "") -> ExitCode:
        code = int.__new__(cls, value)
        code._value_ = value
        code.sentence = sentence
        return code

    DONE = 0, "done and verified"
    FAILED = 1, "failed"
    USAGE = 2, "usage or configuration (nothing was changed)"
    PARTIAL = 3, "some files failed or conflict"
    NOTHING_MATCHED = 4, "nothing has that name"
    INTERRUPTED = 130, "interrupted"


# Of a job's node. It could not be prepared (code, folders, setup commands); the user's program did not run.
SETUP_FAILED_EXIT = 72
# The program succeeded, but its outputs could not be uploaded.
OUTPUT_FAILED_EXIT = 73
# It was one task of a job, and was ended alone, where its platform would start it again after any other code.
ENDED_ALONE_EXIT = 74
# A shell adds the number of the signal that ended a program, at most 64, to 128.
KILLED_CODES = range(129, 193)


def shell_code(code: int) -> int:
    """An exit code of ``subprocess``, or a signal's number made negative, as a shell says it: 143 after SIGTERM."""
    return 128 - code if code < 0 else code
