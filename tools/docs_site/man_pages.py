"""Manual pages (section 1), made from the help: ``man build/docs/man/blobsync-u.1``."""

from __future__ import annotations

from pathlib import Path

from blobsync import __version__
from tools.docs_site.command_tree import CommandHelp, commands, root_command


def write_man_pages(folder: Path) -> None:
    """Write one for ``blobsync`` and one for each command into a new folder."""
    folder.mkdir(parents=True)
    every = list(commands())
    (folder / "blobsync.1").write_text(man_page("blobsync", root_command(), every), encoding="utf-8")
    for each in every:
        name = f"blobsync-{each.names[0].replace(' ', '-')}"
        (folder / f"{name}.1").write_text(man_page(name, each, []), encoding="utf-8")


def man_page(name: str, about: CommandHelp, others: list[CommandHelp]) -> str:
    """The page of one command; ``others`` are listed at its end."""
    text = about.text or ("",)
    lines = [f'.TH "{name.upper()}" 1 "" "blobsync {__version__}"', ".SH NAME", _roff(f"{name} - {text[0]}")]
    lines += [".SH SYNOPSIS", _roff(about.usage)]
    if len(about.names) > 1:
        lines += [".SH OTHER NAMES", _roff(", ".join(about.names[1:]))]
    lines += [".SH DESCRIPTION", *(line for part in text for line in (".PP", _roff(part)))]
    if about.examples:
        lines += [".SH EXAMPLES", ".nf", *(_roff(line) for line in about.examples), ".fi"]
    lines += [".SH OPTIONS"]
    for option, meaning in about.rows:
        lines += [".TP", f"\\fB{_roff(option)}\\fR", _roff(meaning)]
    if others:
        lines += [".SH COMMANDS"]
        for each in others:
            lines += [".TP", f"\\fB{_roff(', '.join(each.names))}\\fR", _roff((each.text or ("",))[0])]
    return "\n".join(lines) + "\n"


def _roff(text: str) -> str:
    """Escape text for roff: no escapes, and no request at the start of a line."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{text}" if text.startswith(".") else text
