"""Names, patterns and archives."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import stat
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

from blobsync.code.secrets import scan
from blobsync.code.unpack import unpack_archive
from blobsync.local.globs import zip_excludes
from blobsync.local.ignore_patterns import parse_lines
from blobsync.local.names import blob_problem, relative_name
from blobsync.plan.transfer_options import selector
from tests.fakes.jobs import zip_of
from tests.soak.target import Target, ignoring, text

_NAMES = (
    *(
        "a",
        "b/a",
        "a/b/c",
        "data/x.jpg",
        "data/deep/er/x.jpg",
        "src/CMC/x.py",
        "x.pyc",
        ".git",
        "foo/",
        "foo/keep/",
        "é",
    ),
    *("aaaaaaaaaaaaaaaaaaaaab", "a/a/a/a/a/a/a/a/a/b", "[x]", "x\\y", "x y ", "\t", "a-b_c.d", "-", "Z", "9", "foo"),
)
_LONG = ("a" * 255, "a/" * 1000 + "b", "ab" * 100 + "/" + "ba" * 100)


def _patterns(data: bytes) -> None:
    listed = parse_lines(data.decode("latin-1"), ".gitignore")
    for rule in listed.rules:
        for name in _NAMES:
            bare = name.rstrip("/").rpartition("/")[2] + "/" * name.endswith("/")
            matched = rule.regex.fullmatch(bare if rule.by_name else name) is not None
            if (expected := _as_pathspec(rule.pattern, bare if rule.by_name else name)) is not None:
                assert matched == expected, (rule.pattern, name, rule.regex.pattern)
    for name in (*_NAMES, *_LONG):
        listed.last_match(name, name.rpartition("/")[2])


def _as_pathspec(pattern: str, name: str) -> bool | None:
    """What pathspec's own expression says; None where ours departs from it on purpose, or its own takes too long."""
    if not pattern.isascii() or any(mark in pattern for mark in "[]\\\t\r\x0b\x0c\x1c\x1d\x1e\x1f") or "***" in pattern:
        return None
    if pattern.count("*") > 6 or pattern.endswith(("/**", "/*", "**/", "*/")) or pattern.strip("!/") in ("*", "**"):
        return None
    regex, _ = GitIgnoreSpecPattern.pattern_to_regex(pattern)
    return None if regex is None else re.fullmatch(regex, name, re.DOTALL) is not None


def _chosen(data: bytes) -> None:
    include, _, exclude = data.decode("latin-1").partition("\n\n")
    chosen = selector(include.split("\n"), exclude.split("\n") if exclude else ())
    if chosen is not None:
        for name in (*_NAMES, *_LONG):
            chosen(name)


def _zip_options(data: bytes) -> None:
    excludes, _ = zip_excludes(text(data).split("\n"), "aml.yaml")
    for name in (*_NAMES, *_LONG):
        for exclude in excludes:
            matched = exclude.leaves_out(name, folder=False)
            plain = exclude.pattern
            if plain.count("*") <= 3 and not set(plain) & set("[]\\?") and plain.isascii() and len(name) < 200:
                assert matched == _fits(plain, name), (plain, name)
            exclude.leaves_out(name, folder=True)


def _fits(pattern: str, name: str) -> bool:
    """``*`` by trying every place; what the expression has to agree with."""
    first, star, rest = pattern.partition("*")
    if not star:
        return first == name
    return name.startswith(first) and any(_fits(rest, name[at:]) for at in range(len(first), len(name) + 1))


def _gate(data: bytes) -> None:
    name = data.decode("utf-8", "surrogatepass" if data.isascii() else "surrogateescape")
    blob_problem(name)
    joined = os.path.normpath(os.path.join("/p/data", relative_name(name, "/p/data")))
    assert joined.startswith("/p/data/"), name
    assert "\0" not in joined and len(os.fsencode(joined)) < 4096


def _archives(scratch: Path) -> Callable[[bytes], None]:
    numbers = itertools.count()

    def run(data: bytes) -> None:
        around = scratch / str(next(numbers))
        inside = around / "root"
        inside.mkdir(parents=True)
        archive = around / "code.zip"
        archive.write_bytes(_as_zip(data))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                unpack_archive(archive, inside, "", 1 << 20)
        except Exception:  # noqa: BLE001 - any of them means that the node is not ready, and is told so
            pass
        else:
            _check_tree(inside)
        finally:
            assert sorted(os.listdir(around)) == ["code.zip", "root"]
            shutil.rmtree(around)

    return run


def _check_tree(root: Path) -> None:
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            assert path.resolve().is_relative_to(root.resolve()), path
            assert not os.lstat(path).st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH) or path.is_symlink()


def _as_zip(data: bytes) -> bytes:
    """JSON is a list of members (name, content, mode); anything else is the archive's own bytes."""
    if not data.startswith(b"[["):
        return data
    try:
        members = json.loads(data)
    except (ValueError, RecursionError):
        return data
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for member in members if isinstance(members, list) else ():
            try:
                name, content, mode = member
                entry = zipfile.ZipInfo(str(name))
                entry.external_attr = (int(mode) & 0xFFFF) << 16
                archive.writestr(entry, str(content))
            except (ValueError, TypeError, OverflowError, UnicodeEncodeError, zipfile.LargeZipFile):
                continue
    return buffer.getvalue()


def _scanned(data: bytes) -> None:
    scan(data)
    scan(data, configuration=True)


_ARCHIVE, _ = zip_of({"a.py": "x = 1\n", "b/run.sh": ("#!/bin/sh\n", 0o100755), "b/link": ("../a.py", 0o120777)})
_MEMBERS = json.dumps(
    [["a.py", "x", 0o100644], ["b/c", "y", 0o100755], ["b/l", "../a.py", 0o120777], ["d/", "", 0o40755]]
)
_STARS = (
    b"*",
    b"**",
    b"/**/",
    b"?",
    b"!",
    b"/",
    b"\\",
    b"[a-z]",
    b"[!a]",
    b"[[:alpha:]]",
    b"#",
    b" ",
    b"\\ ",
    b"a",
    b"b/",
    b"\n",
)

TARGETS = (
    Target(
        "ignore-patterns",
        ignoring(_patterns),
        (
            b"*.pyc\n/foo/\n!foo/keep\n**/a/**/b\na/**\n*a*b*\n# x\n\\#x\n[!a-c]?\ndata/*/x.jpg\n",
            b"a**b\n**\n*\n/\n!/\n***/x\n",
        ),
        _STARS,
    ),
    Target("selection", ignoring(_chosen), (b"*.jpg\ndata/\n\n**/er/*\nx?y\n",), _STARS),
    Target(
        "zip-options",
        ignoring(_zip_options),
        (b"-x\n\\*src/CMC/\\*\n'*.pt'\n\"a?b\"\n-r\n@", b"-x\n'a*b*c'\n"),
        (*_STARS, b"'", b'"', b"-x"),
    ),
    Target(
        "names",
        ignoring(_gate),
        (b"data/voc/a.jpg", b"user_logs/std_log_process_0.txt", b".blobsync-0123abcd.part", "é/日本".encode()),
        (b"..", b"/", b"//", b"\\", b"\0", b".azDownload-1-", b".part", b"\n", b"C:", b"a" * 256),
    ),
    Target(
        "code-archive",
        _archives,
        (_ARCHIVE, _MEMBERS.encode()),
        (
            b"PK\x01\x02",
            b"PK\x03\x04",
            b"PK\x05\x06",
            b"PK\x06\x06",
            b"\xff\xff\xff\xff",
            b"../",
            b"41471",
            b"/etc/x",
            b'["',
        ),
    ),
    Target(
        "secret-scan",
        ignoring(_scanned),
        (
            b"password: hunter2hunter2\nAccountKey=c2VudGluZWw=\nurl?sig=abc%3D&se=1\n-----BEGIN PRIVATE KEY-----\n",
            b'{"api_key": "0123456789abcdef0123456789abcdef", "storageKey": "x"}\nexport TOKEN=ghp_0123456789\n',
            "password = 'grüße1234'\n".encode("utf-16"),
        ),
        (b"key", b"=", b": ", b"sig=", b"-----BEGIN ", b"PRIVATE KEY-----", b"q~", b"ghp_", b"eyJ", b"\0", b"'", b"_"),
    ),
)
