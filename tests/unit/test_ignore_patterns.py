"""Ignore files, compared with ``git check-ignore`` on the same tree."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from blobsync.base.errors import IgnorePatternError, LocalFileError
from blobsync.local.globs import zip_excludes
from blobsync.local.ignore_patterns import IgnoreRules, Rule, parse_lines, project_rules

GIT = ("git", "-c", "core.excludesFile=/dev/null")


def git_ignores(root: Path, paths: list[str]) -> set[str]:
    """The paths that git leaves out, tracked or not."""
    if not (root / ".git").exists():
        subprocess.run([*GIT, "init", "-q", str(root)], check=True)
    done = subprocess.run(
        [*GIT, "check-ignore", "--no-index", "-z", "--stdin"],
        cwd=root,
        input=b"\0".join(os.fsencode(path) for path in paths),
        capture_output=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return {os.fsdecode(path) for path in done.stdout.split(b"\0") if path}


def walk(root: Path) -> tuple[list[str], set[str]]:
    """Every path below ``root``, and those that our rules leave out."""
    paths: list[str] = []
    left_out: set[str] = set()

    def visit(below: str, rules: IgnoreRules, *, out: bool) -> None:
        names = sorted(set(os.listdir(root / below)) - {".git"})
        rules = rules if out else rules.entering(root / below, below, names)
        for name in names:
            path = below + name
            folder = (root / path).is_dir() and not (root / path).is_symlink()
            rule = None if out else rules.decide(path, folder=folder)
            is_out = out or (rule is not None and not rule.takes_in)
            paths.append(path)
            if is_out:
                left_out.add(path)
            if folder:
                visit(f"{path}/", rules, out=is_out)

    visit("", project_rules(root), out=False)
    return paths, left_out


def make(root: Path, files: Mapping[str, str], *paths: str) -> None:
    for path in paths:
        file = root / path
        if path.endswith("/"):
            file.mkdir(parents=True, exist_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(text.encode())


# name -> (ignore files, paths, what is left out)
CASES: dict[str, tuple[dict[str, str], tuple[str, ...], set[str]]] = {
    "a name anywhere": ({".gitignore": "x.log\n"}, ("x.log", "a/x.log", "a/y.log"), {"x.log", "a/x.log"}),
    "a star stays in its part": ({".gitignore": "/*.log\n"}, ("x.log", "a/x.log"), {"x.log"}),
    "a slash anchors": ({".gitignore": "a/b\n"}, ("a/b", "c/a/b"), {"a/b"}),
    "folders only": ({".gitignore": "b/\n"}, ("b/x", "c/b"), {"b", "b/x"}),
    "negation": ({".gitignore": "*.log\n!keep.log\n"}, ("x.log", "keep.log"), {"x.log"}),
    "the last line wins": ({".gitignore": "!x\nx\n"}, ("x",), {"x"}),
    "nothing comes back below a folder that is out": (
        {".gitignore": "out/\n!out/keep\n"},
        ("out/keep", "out/x"),
        {"out", "out/keep", "out/x"},
    ),
    "but it does below its content": ({".gitignore": "out/*\n!out/keep\n"}, ("out/keep", "out/x"), {"out/x"}),
    "two stars at the end are not the folder itself": (
        {".gitignore": "out/**\n!out/keep\n"},
        ("out/keep", "out/x", "out/a/b"),
        {"out/x", "out/a", "out/a/b"},
    ),
    "two stars at the start": ({".gitignore": "**/a/b\n"}, ("a/b", "c/a/b", "c/d/a/b"), {"a/b", "c/a/b", "c/d/a/b"}),
    "two stars inside": ({".gitignore": "a/**/b\n"}, ("a/b", "a/x/b", "a/x/y/b", "b"), {"a/b", "a/x/b", "a/x/y/b"}),
    "a nested file counts from its folder": ({"a/.gitignore": "/x\n"}, ("x", "a/x", "a/b/x"), {"a/x"}),
    "a nested file wins": ({".gitignore": "*.o\n", "a/.gitignore": "!*.o\n"}, ("x.o", "a/x.o"), {"x.o"}),
    "comments, blank lines, CRLF, BOM": (
        {".gitignore": "\ufeffx\r\n\r\n# y\r\n\\#z\r\n"},
        ("x", "y", "#z"),
        {"x", "#z"},
    ),
    "spaces at the end": ({".gitignore": "a  \nb\\ \n"}, ("a", "b", "b "), {"a", "b "}),
    "a bracket never matches a slash": (
        {".gitignore": "a[!x]b\n/c[!x]d\n"},
        ("a/b", "ayb", "c/d", "cyd"),
        {"ayb", "cyd"},
    ),
    "a class": ({".gitignore": "[[:digit:]]*\n"}, ("1a", "a1"), {"1a"}),
    "a question mark is one byte": ({".gitignore": "?\n"}, ("a", "é"), {"a"}),
    "all but a few": (
        {".gitignore": "*\n!*/\n!*.py\n"},
        ("a.py", "a.txt", "b/c.py", "b/c.txt"),
        {"a.txt", "b/c.txt", ".gitignore"},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_case_by_case_as_git(case: tuple[dict[str, str], tuple[str, ...], set[str]], tmp_path: Path) -> None:
    files, paths, expected = case
    make(tmp_path, files, *paths)
    seen, left_out = walk(tmp_path)
    assert left_out == expected
    assert left_out == git_ignores(tmp_path, seen)


def test_a_link_to_a_folder_is_no_folder(tmp_path: Path) -> None:
    make(tmp_path, {".gitignore": "b/\n"}, "a/x")
    (tmp_path / "b").symlink_to("a")
    seen, left_out = walk(tmp_path)
    assert "b" in seen and left_out == git_ignores(tmp_path, seen) == set()


NAMES = ("a", "b", "foo", "bar", "é", "a b", "x.py", "[a]", "foo ", "#h", "!n", "a\\b", "B")
ATOMS = (
    *("*", "**", "***", "?", "a", "b", "foo", "bar", "x", "é", ".py", "\\a", "\\*", "\t", "/", "/", "/", "//"),
    *("[ab]", "[!a]", "[^fo]", "[a-f]", "[]a]", "[a\\]]", "[!/]", "[[:alpha:]]", "[[:space:]]"),
)


def patterns(chance: random.Random, count: int) -> Iterator[str]:
    while count:
        text = "".join(chance.choice(ATOMS) for _ in range(chance.randint(1, 5)))
        text = ("/" if chance.random() < 0.2 else "") + text + ("/" if chance.random() < 0.3 else "")
        text = ("!" if chance.random() < 0.3 else "") + text + chance.choice(("", "", "", " ", "\\ ", "\r"))
        # git 2.39 takes the stars of "foo**/x" for a whole part, against its own documentation.
        text = re.sub(r"([^/*!]|^[^/]*[^/*!])\*\*+", r"\1*", text)
        try:
            parse_lines(os.fsencode(text).decode("latin-1"), "test")
        except IgnorePatternError:
            continue
        count -= 1
        yield text


@pytest.mark.parametrize("seed", range(60))
def test_random_trees_and_patterns_as_git(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    folders = [tmp_path]
    for _ in range(8):
        folder = chance.choice(folders) / chance.choice(NAMES)
        if not folder.exists():
            folder.mkdir()
            folders.append(folder)
    for folder in folders:
        for name in chance.sample(NAMES, 4):
            if not (folder / name).exists():
                (folder / name).touch()
        if folder == tmp_path or chance.random() < 0.5:
            (folder / ".gitignore").write_text("\n".join(patterns(chance, chance.randint(1, 4))) + "\n")
    seen, left_out = walk(tmp_path)
    assert left_out == git_ignores(tmp_path, seen)


def test_a_project_inside_a_repository_gets_the_rules_around_it(tmp_path: Path) -> None:
    make(tmp_path, {".gitignore": "*.log\n/sub/proj/x\n"}, "sub/proj/x", "sub/proj/a.log", "sub/proj/y")
    git_ignores(tmp_path, [])
    rules = project_rules(tmp_path / "sub/proj")
    found = {name: rules.decide(name, folder=False) for name in ("x", "a.log", "y")}
    assert {name: rule and (rule.file, rule.line) for name, rule in found.items()} == {
        "x": ("../../.gitignore", 2),
        "a.log": ("../../.gitignore", 1),
        "y": None,
    }


def test_a_project_that_its_repository_leaves_out_gets_none_of_its_rules(tmp_path: Path) -> None:
    make(tmp_path, {".gitignore": "sub/\n*.py\n"}, "sub/proj/x.py")
    git_ignores(tmp_path, [])
    assert project_rules(tmp_path / "sub/proj").decide("x.py", folder=False) is None


def decided(root: Path, path: str, ignore: tuple[str, ...] = ()) -> Rule | None:
    rules = project_rules(root, ignore, "aml.yaml").entering(root, "", os.listdir(root))
    return rules.decide(path, folder=False)


def test_later_kinds_of_files_win(tmp_path: Path) -> None:
    make(tmp_path, {".gitignore": "a\nb\nc\nd\n", ".amlignore": "!a\n!b\n!c\n", ".blobsyncignore": "a\nb\n"})
    answers = [decided(tmp_path, name, ("!a",)) for name in "abcd"]
    assert [rule and (rule.file, rule.line, rule.takes_in) for rule in answers] == [
        ("aml.yaml: ignore", 0, True),
        (".blobsyncignore", 2, False),
        (".amlignore", 3, True),
        (".gitignore", 4, False),
    ]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a\\", "ends with a backslash"),
        ("a[b", "without a closing ']'"),
        ("[[:nothing:]]", "unknown character class"),
    ],
)
def test_a_pattern_that_can_match_nothing_is_named(tmp_path: Path, pattern: str, reason: str) -> None:
    make(tmp_path, {".amlignore": f"fine\n{pattern}\n"})
    with pytest.raises(IgnorePatternError, match=r"^\.amlignore:2: bad pattern") as caught:
        decided(tmp_path, "x")
    assert reason in caught.value.message


def test_a_link_is_not_read_as_ignore_file(tmp_path: Path) -> None:
    make(tmp_path, {"rules": "x\n"})
    (tmp_path / ".gitignore").symlink_to("rules")
    assert decided(tmp_path, "x") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_ignore_file_that_cannot_be_read_stops_it(tmp_path: Path) -> None:
    make(tmp_path, {".gitignore": "x\n"})
    (tmp_path / ".gitignore").chmod(0)
    with pytest.raises(LocalFileError, match="Permission denied"):
        decided(tmp_path, "x")


ZIP_PATHS = ("src/CMC/a.c", "src/CMC/b/c.c", "x/src/CMC/d", "src/CMCx", "run.sh", "a/run.sh", "a1", "a2", "a/b1")


@pytest.mark.parametrize(
    "options",
    [
        ("-x", "\\*src/CMC/\\*"),
        ("-x \\*src/CMC/\\*",),
        ("-x", "'*.sh'", "-x", "a[12]"),
        ("-x", "src/*", "a?b1"),
        ("-x", "a[^1]"),
    ],
)
def test_zip_options_leave_out_what_zip_leaves_out(tmp_path: Path, options: tuple[str, ...]) -> None:
    make(tmp_path, {}, *ZIP_PATHS)
    excludes, others = zip_excludes(options, "aml.yaml")
    assert others == ()
    line = " ".join(["zip -qr ../out.zip .", *options])
    # In a folder of no files the shell leaves unquoted patterns as they are.
    subprocess.run(["sh", "-c", f"set -f; {line}"], cwd=tmp_path, check=True)
    listed = subprocess.run(["unzip", "-Z1", tmp_path.parent / "out.zip"], capture_output=True, text=True, check=True)
    (tmp_path.parent / "out.zip").unlink()
    kept = {path for path in ZIP_PATHS if not any(each.leaves_out(path, folder=False) for each in excludes)}
    assert kept == set(listed.stdout.splitlines()) & set(ZIP_PATHS)


def test_zip_options_prune_only_what_is_left_out_whole() -> None:
    (deep, single), _ = zip_excludes(("-x", "*src/CMC/*", "a/x"), "aml.yaml")
    assert deep.leaves_out("src/CMC", folder=True)
    assert not deep.leaves_out("src", folder=True)
    assert not single.leaves_out("a", folder=True)


def test_zip_options_that_mean_nothing_here_are_reported() -> None:
    excludes, others = zip_excludes(("-9", "-x", "*.o", "-q"), "aml.yaml")
    assert [each.pattern for each in excludes] == ["*.o"]
    assert others == ("-9", "-q")


def test_a_bad_zip_pattern_names_its_file() -> None:
    with pytest.raises(IgnorePatternError, match=r"aml\.yaml: zip_options"):
        zip_excludes(("-x", "a[b"), "aml.yaml")
