"""Runs docs/tutorial.md as a reader would: each command in one shell, and what it prints."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
# A slow machine takes a tenth of it.
_MOST_SECONDS = 150
# A command that takes the lines up to END.
_TEXT_FOLLOWS = "<<'END'"


class Step(NamedTuple):
    """One command of the page, and what the page says that it prints."""

    command: str
    shown: str


class Ran(NamedTuple):
    """What a command printed, its exit code, and how many seconds it took."""

    step: Step
    printed: str
    code: int
    seconds: float


def steps() -> Iterator[Step]:
    """Every command of the page."""
    for block in PAGE.read_text(encoding="utf-8").split("```console\n")[1:]:
        for part in re.split(r"^\$ ", block.split("```")[0], flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            if command.endswith(_TEXT_FOLLOWS):
                text, _, output = output.partition("END\n")
                command = f"{command}\n{text}END"
            yield Step(command, output)


def run_page(folder: Path, environ: Mapping[str, str]) -> list[Ran]:
    """All of them, in a new shell in ``folder``; raises ``RuntimeError`` if the shell ends before they do."""
    every = list(steps())
    after = "printf '\\0%s %s\\0' $? $(date +%s.%N)\n"
    script = after + "".join(f"{step.command}\n{after}" for step in every)
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=dict(environ), capture_output=True, text=True, timeout=_MOST_SECONDS
    )
    *printed, rest = done.stdout.split("\0")
    ends = [each.split() for each in printed[1::2]]
    if len(ends) != len(every) + 1 or rest:
        raise RuntimeError(f"the shell ended early:\n{done.stdout}\n{done.stderr}")
    moments = [float(moment) for _, moment in ends]
    found = zip(every, printed[2::2], ends[1:], moments, moments[1:], strict=False)
    return [Ran(step, output, int(end[0]), after - before) for step, output, end, before, after in found]


def differences(ran: list[Ran], folder: Path) -> list[str]:
    """Each command that printed something else than the page shows, or failed where the page does not say so."""
    text = "".join(each.printed for each in ran)
    port = next(iter(re.findall(r"http://127\.0\.0\.1:(\d+)", text)), "10000")
    wrong = []
    for each in ran:
        printed = each.printed.replace(f"127.0.0.1:{port}", "127.0.0.1:10000").replace(str(folder), "/home/me")
        if _steady(printed) != _steady(each.step.shown):
            wrong.append(f"{each.step.command}: printed\n{printed}instead of\n{each.step.shown}")
        # `status` and `verify` say with 3 that something differs.
        elif each.code not in ((0, 3) if re.match(r"blobsync (status|verify)\b", each.step.command) else (0,)):
            wrong.append(f"{each.step.command}: exit code {each.code}")
    return wrong


def newcomer(folder: Path, programs: Path, tools: Path) -> dict[str, str]:
    """The environment of somebody new to blobsync, with its home in ``folder`` and the programs of ``programs`` first.

    Azurite of ``tools`` is there already, where ``tools`` has it.
    """
    data = folder / "share" / "blobsync"
    data.mkdir(parents=True)
    for installed in tools.glob("azurite-*"):
        (data / installed.name).symlink_to(installed)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BLOBSYNC_", "AML_", "PYTHON"))}
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    return {**kept, "HOME": str(folder), "XDG_DATA_HOME": str(folder / "share"), "PATH": path}


def choose_free_port(environ: Mapping[str, str]) -> None:
    """The port of an emulator's start is that of the next one."""
    for words in (("start", "--port", "0"), ("stop",)):
        subprocess.run(["blobsync", "emulator", *words], env=dict(environ), check=True, capture_output=True)


def _steady(text: str) -> str:
    """Without what differs from run to run: times, estimates, processes, archives, jobs."""
    text = re.sub(r"\b\d+(\.\d+)? s\b", "N s", text)
    text = re.sub(r"(packed \d+ files, .*) as .* in", r"\1 in", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\dT[\d:]+Z", "TIME", text)
    return re.sub(r"process \d+|is now [0-9a-f]{12}|\b\w+_\d{10}_[0-9a-f]{8}\b", "-", text)
