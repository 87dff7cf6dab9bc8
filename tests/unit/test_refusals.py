"""What a transfer or submit refuses because of a file, ``config check`` tells in the same words.

The cases are held to the code: every place in the rooms that read configuration files where a mistake is noted or
raised has been reached by one of them, or says why no file can reach it.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from blobsync.base.errors import ConfigError
from blobsync.config.check import CheckedFile, check_project
from blobsync.config.loader import load_cluster, load_workspace
from blobsync.config.model import AML_PLATFORMS
from blobsync.config.trust_store import TRUSTED_LINKS
from tests.source import ROOT
from tests.unit.project_files import ProjectFiles
from tests.unit.test_config_errors import ACCOUNT_MISTAKES, ACCT, BASE, CLUSTER_MISTAKES, DATA, ENTRY

# Writes what is wrong into a project that is sound; HOME is a folder beside it.
Damage = Callable[[ProjectFiles, Path], None]


def cluster(text: str | bytes) -> Damage:
    def write(files: ProjectFiles, home: Path) -> None:
        path = files.cluster("")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def account(text: str) -> Damage:
    def write(files: ProjectFiles, home: Path) -> None:
        files.account("acct", text)

    return write


def own(name: str, text: str | bytes, mode: int = 0o600, with_cluster: str = DATA) -> Damage:
    """A file of the user's own configuration."""

    def write(files: ProjectFiles, home: Path) -> None:
        files.cluster(with_cluster)
        folder = home / ".config/blobsync"
        folder.mkdir(parents=True, mode=0o700)
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        (folder / name).chmod(mode)

    return write


def no_cluster_file(files: ProjectFiles, home: Path) -> None:
    (files.root / "aux_data/aml/aml.yaml").unlink()


def a_folder_for_an_account(files: ProjectFiles, home: Path) -> None:
    (files.root / ACCT).unlink()
    (files.root / ACCT).mkdir()


def a_folder_for_trusted_links(files: ProjectFiles, home: Path) -> None:
    (home / ".config/blobsync/trusted-links.json").mkdir(parents=True, mode=0o700)


def a_login(text: str, mode: int = 0o600) -> Damage:
    inner = own("logins.json", text, mode)

    def write(files: ProjectFiles, home: Path) -> None:
        inner(files, home)
        files.account("acct", BASE)

    return write


def a_workspace(text: str) -> Damage:
    def write(files: ProjectFiles, home: Path) -> None:
        files.cluster(DATA + "platform: aml\n")
        files.write("aux_data/aml/config.json", text)

    return write


PLACE = "https://acct.blob.core.windows.net/cont"
MOUNT = f"  - {{blob_mount_point: /blob, azure_blob_config_file: {ACCT}}}\n"
MOUNTS = "blob_mount_info:\n" + 2 * MOUNT
FOLDERS = f"config_param:\n  data_folder: {{azure_blob_config_file: {ACCT}, path: %s}}\n"
CHECKPOINTS = f"config_param:\n  output_folder: {{azure_blob_config_file: {ACCT}, path: out, mode: upload, %s}}\n"
BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)
USES_HOME = DATA + "env: {A: '${EDITOR}'}\n"

BUCKET = "storage_type: s3\nbucket: laion\n"


def code_in_a_bucket(files: ProjectFiles, home: Path) -> None:
    files.account("acct", BUCKET)
    files.cluster(f"config_param:\n  code_path: {{azure_blob_config_file: {ACCT}, path: code.zip}}\n")


MISTAKES: Mapping[str, Damage] = {
    **{name: cluster(text) for name, (text, _) in CLUSTER_MISTAKES.items()},
    **{f"account: {name}": account(text) for name, (text, _) in ACCOUNT_MISTAKES.items()},
    "no cluster file": no_cluster_file,
    "a platform that is none": cluster(DATA + "platform: slrum\n"),
    "a variable that is not allowed": cluster(USES_HOME),
    "a variable's name": cluster('env:\n  "A=B": x\n'),
    "a NUL": cluster('env:\n  A: "x\\0y"\n'),
    "a program": cluster(DATA + "interpreter_path: ./evil.sh\n"),
    "auth without its credential": account(BASE + "account_key: a2V5\nauth: sas\n"),
    "not UTF-8": cluster(b"a: \xff\n"),
    "too large": cluster("# " + "x" * (1 << 20)),
    "no mapping": cluster("- a\n"),
    "nested too deeply": cluster("a: " + "[\n " * 150 + "]" * 150),
    "a character": cluster("a: \x07\n"),
    "aliases of aliases": cluster(BOMB),
    "a value that contains itself": cluster("a: &a [*a]\n"),
    "a key of two words": cluster("? [a, b]\n: c\n"),
    "a key twice": cluster("a: 1\na: 2\n"),
    "a folder for a file": a_folder_for_an_account,
    "a reserved folder": cluster(f"config_param:\n  .git_folder: {ENTRY}\n"),
    "the example's path": cluster(FOLDERS % "<your path>"),
    "keys of checkpoints without checkpoints": cluster(CHECKPOINTS % "restore: latest"),
    "checkpoints that are no pattern": cluster(CHECKPOINTS % "checkpoints: ../x"),
    "a path with a backslash": cluster(FOLDERS % "'a\\\\b'"),
    "a path too long": cluster(FOLDERS % ("x" * 950)),
    "a mount point twice": cluster(MOUNTS + "config_param:\n  data_folder: /blob/x\n"),
    "a damaged file of logins": a_login("no JSON"),
    "a login that is none": a_login(json.dumps({"logins": {PLACE: {"sas_token": "no SAS"}}})),
    "logins that others can read": a_login(json.dumps({"logins": {}}), 0o644),
    "an own configuration with a mistake": own("config.yaml", "allowed_variables: 7\n", with_cluster=USES_HOME),
    "an own configuration that others can write": own("config.yaml", "", 0o666, with_cluster=USES_HOME),
    "trusted links that are damaged": own("trusted-links.json", "{}"),
    "trusted links of odd bytes": own("trusted-links.json", b"\xff"),
    "trusted links without end": own("trusted-links.json", "x" * (1 << 20 | 1)),
    "a folder for trusted links": a_folder_for_trusted_links,
    "a bucket without a name": account("storage_type: s3\n"),
    "a bucket's name": account("storage_type: s3\nbucket: b\n"),
    "a bucket with a key of Azure": account(BUCKET + "account_name: acct\n"),
    "the endpoint of a bucket": account(BUCKET + "endpoint: minio.example\n"),
    "the region of a bucket": account(BUCKET + "region: 'a b'\n"),
    "a profile without credentials": account(BUCKET + "profile: p\nanonymous: true\n"),
    "a payer without a name": account(BUCKET + "requester_pays: true\nanonymous: true\n"),
    "a container with a key of buckets": account(BASE + "bucket: laion\n"),
    "code in a bucket": code_in_a_bucket,
    "no workspace": cluster(DATA + "platform: aml\naml_config: aux_data/aml/no.json\n"),
    "half a workspace": a_workspace('{"subscription_id": "s", "resource_group": "g"}'),
    "the example's workspace": a_workspace('{"subscription_id": "xxxx", "resource_group": "g", "workspace_name": "w"}'),
}

# What reads configuration files on the road of every transfer and of submit.
READING = [
    *(ROOT / "blobsync/config" / f"{name}.py" for name in ("accounts", "loader", "logins")),
    *(ROOT / "blobsync/config" / f"{name}.py" for name in ("typed_values", "user_config", "yaml_document")),
    ROOT / "blobsync/base/user_folders.py",
]
OTHERS: Mapping[str, str] = {
    "project_root": "config check begins with it, as every command does",
    "mapping": "the path on the command line is wrong",
    "scaffold": "only config new asks for it, and convert writes by it",
    "job_keys": "submit refuses it, and config check tells it beforehand; tests/unit/test_preflight.py",
    "model": "gives an error of submit its line in the file; tests/unit/test_preflight.py",
    "trusted_code": "submit and config trust-code read it; tests/unit/test_trusted_code.py",
    "trusted_docker": "local, initc and config trust-docker read it; tests/unit/test_trusted_docker.py",
    "source_option": "--source on the command line is wrong; tests/unit/test_source_option.py",
}
# Raised on purpose in those modules, and never shown: others take their place.
_INNER = ("RecursionError", "yaml.MarkedYAMLError")
NOT_A_FILES_FAULT: Mapping[str, str] = {
    "raise ValueError(str(error)) from error": "a file of --sweep-file, which is no configuration",
    "-p takes YAML": "the words after -p are wrong",
    "UnknownClusterError": "the name after -c is wrong",
    "the given text is": "only login asks for it",
    "is not one of {container}": "only login asks for it",
    "cannot be written": "only login and trust-link write",
    "belongs to another user": "takes a second user; tests/unit/test_user_config.py",
}


def refused(root: Path, environ: Mapping[str, str]) -> ConfigError:
    """What every transfer raises before it asks anybody, or submit to a cluster of Azure ML."""

    def read() -> None:
        found = load_cluster(root, environ=environ)
        TRUSTED_LINKS.load(root, environ)
        if found.platform in AML_PLATFORMS:
            load_workspace(found, environ=environ)

    with pytest.raises(ConfigError) as caught:
        read()
    return caught.value


def damaged(folder: Path, damage: Damage) -> tuple[Path, Mapping[str, str]]:
    files = ProjectFiles(folder / "project")
    files.cluster(DATA)
    damage(files, folder)
    return files.root, {"HOME": str(folder), "EDITOR": "vi"}


def told(root: Path, environ: Mapping[str, str]) -> list[ConfigError]:
    checked: tuple[CheckedFile, ...] = check_project(root, environ=environ)
    return [problem for item in checked for problem in item.problems]


@pytest.mark.parametrize("damage", MISTAKES.values(), ids=MISTAKES.keys())
def test_config_check_tells_what_commands_refuse(tmp_path: Path, damage: Damage) -> None:
    root, environ = damaged(tmp_path, damage)
    error = refused(root, environ)
    found = told(root, environ)
    if damage is no_cluster_file:
        assert [each.message for each in found] == ["aux_data/aml/ contains no cluster file"]
        return
    assert error.message in [each.message for each in found]
    assert (error.hint or "").partition("; ")[0] in [*((each.hint or "").partition("; ")[0] for each in found)] or (
        "more: blobsync config check" in (error.hint or "")
    )


def test_every_place_that_refuses_a_file_has_a_case_above(tmp_path: Path) -> None:
    files = {str(path) for path in READING}
    seen: set[tuple[str, int]] = set()
    for number, damage in enumerate(MISTAKES.values()):
        root, environ = damaged(tmp_path / str(number), damage)
        with lines_run(files) as here:
            told(root, environ)
            refused(root, environ)
        seen |= here
    left = [
        f"{path.name}:{node.lineno}: {text}"
        for path in READING
        for node, text in places(path)
        if not seen & {(str(path), line) for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    ]
    assert [each for each in left if not any(words in each for words in NOT_A_FILES_FAULT)] == []
    assert [words for words in NOT_A_FILES_FAULT if not any(words in each for each in left)] == []


def test_no_room_that_refuses_files_is_left_out() -> None:
    names = {path.stem for path in (ROOT / "blobsync/config").glob("*.py") if list(places(path))}
    assert names == {path.stem for path in READING if path.parent.name == "config"} | OTHERS.keys()


def places(path: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Each statement that notes or raises a mistake."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and node.exc and not ast.unparse(node.exc).startswith(_INNER):
            yield node, ast.unparse(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr == "problem":
                yield node, ast.unparse(node)


def raised_in(path: Path, classes: str) -> Iterator[tuple[ast.Raise, str]]:
    """Each statement of a file that raises one of these classes (a pattern)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Raise) and re.match(rf"raise ({classes})\(", ast.unparse(node)):
            yield node, ast.unparse(node)


@contextmanager
def lines_run(files: set[str]) -> Iterator[set[tuple[str, int]]]:
    """The lines of ``files`` that run meanwhile."""
    seen: set[tuple[str, int]] = set()

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, argument: Any) -> Any:
        return line if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield seen
    finally:
        sys.settrace(before)
