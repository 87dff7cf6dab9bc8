"""What must not stand in the repository: machines, registries, secrets, conflict marks, unfinished work, two meanings
of one name, pages that are not those of the code."""

from __future__ import annotations

import ast
import re

import pytest

from tests.source import ROOT, modules, tracked_files
from tools import failure_codes_page

# Words are put together here so that this file does not hold them itself.
_DOT = r"\."
FORBIDDEN: dict[str, str] = {
    "the host name of a package registry (pip, npm and apt know theirs)": "|".join(
        _DOT.join(parts)
        for parts in (
            ("registry", "npm" + "js"),
            ("pypi", "org/simple"),
            ("files", "python" + "hosted"),
            ("deb", "debian", "org"),
            ("archive", "ubuntu", "com"),
        )
    ),
    "a path of somebody's machine": r"(?<![\w.])/(?:"
    + "|".join(["wo" + "rk", "ro" + "ot", "fa" + "rm", "opt/bs" + r"\w*"])
    + r")/",
    "the mark of a merge that was not finished": r"^(?:" + "<" * 7 + "|" + ">" * 7 + r") ",
    "a note of unfinished work": r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b",
    "the signature of a real-looking SAS": r"sig=[A-Za-z0-9%+/]{43}(?:=|%3[dD])",
}
# What we did not write, kept as it was: checksums of packages, Microsoft's specification of Azure ML.
SKIPPED = ("blobsync/emulator/package-lock.json", "tests/data/aml-openapi/")


def _texts() -> list[tuple[str, str]]:
    found = []
    for path in tracked_files():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(SKIPPED) or path.stat().st_size > 1_000_000:
            continue
        try:
            found.append((name, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return found


TEXTS = _texts()


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    hits = [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group(0)}"
        for name, text in TEXTS
        for match in pattern.finditer(text)
    ]
    assert not hits


def test_the_lock_file_names_no_registry() -> None:
    text = (ROOT / SKIPPED[0]).read_text(encoding="utf-8")
    assert '"resolved"' not in text
    assert text.count('"integrity"') > 200


@pytest.mark.parametrize(
    "sample",
    [
        "https://" + "registry." + "npmjs" + ".org/x",
        "index " + "https://pypi." + "org/simple",
    ],
)
def test_registries_are_seen(sample: str) -> None:
    assert re.search(next(iter(FORBIDDEN.values())), sample)


def test_files_end_with_one_newline_and_have_no_tabs_in_python() -> None:
    wrong = []
    for name, text in TEXTS:
        if name.endswith((".py", ".md", ".toml", ".yaml", ".yml", ".js")) and text:
            if not text.endswith("\n") or text.endswith("\n\n"):
                wrong.append(f"{name}: end of file")
            if name.endswith(".py") and re.search(r"^ *\t", text, re.MULTILINE):
                wrong.append(f"{name}: tab")
    assert not wrong


def test_links_between_documents_lead_somewhere() -> None:
    dead = []
    for name, text in TEXTS:
        if name.endswith(".md"):
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
                if "://" not in target and not (ROOT / name).parent.joinpath(target).exists():
                    dead.append(f"{name}: {target}")
    assert not dead


def test_the_files_that_contributing_names_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`(blobsync/[\w/]+\.py)`", text)
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / name).is_file()]


def test_the_rooms_of_contributing_are_those_of_the_layers() -> None:
    from tests.test_layering import ROOMS

    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = [line[4:] for line in text.splitlines() if re.match(r"    [a-z]", line)]
    words = [word for line in picture for word in re.split(r"\s{2,}", line) if word in ROOMS]
    assert words == list(ROOMS)


# Read by tests alone, which hold the code to it.
FOR_TESTS = {"CAPABILITIES"}


def test_what_a_module_defines_is_read_somewhere() -> None:
    read: set[str] = set()
    defined: list[tuple[str, str]] = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                read.add(node.id if isinstance(node, ast.Name) else node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                # What is looked up by its name: annotations in quotes, the names that the package exports.
                read.update(re.findall(r"\w+", node.value) if len(node.value) < 200 else ())
        for node in module.tree.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                # What decorates a command reads it.
                if not any(".command(" in ast.unparse(one) for one in node.decorator_list):
                    defined.append((module.file, node.name))
            elif isinstance(node, ast.Assign):
                defined += [(module.file, each.id) for each in node.targets if isinstance(each, ast.Name)]
    known = read | FOR_TESTS
    assert [f"{file}: {name}" for file, name in defined if name not in known and not name.startswith("__")] == []


def test_the_page_of_failure_codes_is_that_of_the_code() -> None:
    assert failure_codes_page.PAGE.read_text(encoding="utf-8") == failure_codes_page.page(), (
        "run: python -m tools.failure_codes_page"
    )
