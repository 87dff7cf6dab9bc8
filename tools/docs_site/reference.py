"""Reference pages made from the code: they cannot say what it does not do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from blobsync.base.errors import FailureCode
from blobsync.base.exit_codes import ExitCode
from blobsync.config import known_keys
from tools.docs_site.command_tree import CommandHelp, commands, root_command
from tools.docs_site.markdown import plain, table
from tools.docs_site.python_api import Writer
from tools.docs_site.variables import FOR_USERS
from tools.read_back import table as read_back_table

_FILES: Mapping[str, Mapping[str, known_keys.Key]] = {
    "Storage account file: aux_data/configs/*.yaml": known_keys.ACCOUNT,
    "Workspace file: aux_data/aml/config.json": known_keys.WORKSPACE,
    "Cluster file: aux_data/aml/NAME.yaml": known_keys.CLUSTER,
    "Your own file: ~/.config/blobsync": known_keys.USER,
}


def write_reference(folder: Path) -> None:
    """Write the pages into a new folder."""
    folder.mkdir()
    for name, text in _pages():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")


def _pages() -> Iterator[tuple[str, str]]:
    yield "options", options_page()
    yield "keys", keys_page()
    yield "environment", environment_page()
    yield "exit-codes", exit_codes_page()
    yield "read-back", read_back_page()
    yield from Writer().pages()


def options_page() -> str:
    """Every command with its options; those that all take stand once, at the top."""
    root = root_command()
    lines = ["# All commands and options", "", "Examples with their output are in [commands](../commands.md).", ""]
    lines += ["## Options of all commands", "", *_table(("option", "meaning"), root.rows)]
    for each in commands():
        own = [row for row in each.rows if row not in root.rows]
        lines += ["", f"## {', '.join(each.names)}", "", f"    {each.usage}", "", *_paragraphs(each)]
        lines += _table(("option", "meaning"), own) if own else []
    return "\n".join(lines) + "\n"


def _paragraphs(each: CommandHelp) -> Iterator[str]:
    for text in each.text:
        yield from (plain(text), "")
    if each.examples:
        yield from (*(f"    {line}" for line in each.examples), "")


def keys_page() -> str:
    """Every key of every file with its type."""
    lines = ["# All configuration keys", "", "What each of them does is in [configuration](../configuration.md).", ""]
    for title, keys in _FILES.items():
        lines += [f"## {title}", "", *_table(("key", "type"), list(_key_rows(keys, ""))), ""]
    return "\n".join(lines)


def _key_rows(keys: Mapping[str, known_keys.Key], above: str) -> Iterator[tuple[str, str]]:
    for name, key in keys.items():
        kind = " or ".join(key.choices) if key.choices else key.kind.value
        yield f"{above}{name}", f"{kind}; a secret" if key.secret else kind
        inner = f"{above}{name}.NAME." if key.kind is known_keys.Kind.FOLDERS else f"{above}{name}."
        yield from _key_rows(key.keys or {}, inner)


def environment_page() -> str:
    """Every variable that blobsync reads."""
    lines = [
        "# Environment variables",
        "",
        "What blobsync reads from its environment. What the program of a job finds there is in [jobs](../jobs.md);",
        "variables of proxies (`HTTPS_PROXY` and so on) and of logins (`AZURE_CLIENT_ID` and so on) are in",
        "[credentials](../credentials.md).",
        "",
        "| variable | meaning |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in FOR_USERS.items()),
    ]
    return "\n".join(lines) + "\n"


def exit_codes_page() -> str:
    """Every exit code, with the failure codes that lead to it."""
    lines = [
        "# Exit codes",
        "",
        "What a command ends with. Scripts can rely on these numbers: a change of one is in the",
    ]
    lines += ["[changelog](../changelog.md). For each file, [failure codes](../failure-codes.md) say more.", ""]
    rows = []
    for code in ExitCode:
        leading = [f"`{each}`" for each in FailureCode if each.exit_code is code]
        rows.append((f"`{int(code)}`", plain(code.sentence), ", ".join(leading)))
    return "\n".join([*lines, *table(("code", "meaning", "failure codes"), rows)]) + "\n"


def read_back_page() -> str:
    """Everything that is read back, and why it counts."""
    lines = [
        "# What is read back",
        "",
        "What blobsync wrote once and reads again may have been changed in between, by anybody who can write there.",
        "This is everything of that kind, with what makes it count; seals are MACs with a key of yours. What only",
        "makes blobsync stop or wait needs none. Listings, sizes and ETags are",
        "[a server's](../security.md#a-server) answers.",
        "`tools/read_back.py` has the tests that attack each row, and every function that reads.",
        "",
    ]
    return "\n".join([*lines, read_back_table()])


def _table(heads: tuple[str, str], rows: Sequence[tuple[str, str]]) -> list[str]:
    """Rows of what is code, and its meaning in plain text."""
    return table(heads, [(f"`{left}`", plain(right)) for left, right in rows])
