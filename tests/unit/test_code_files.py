"""The rules that decide which files are code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import ArchiveError, IgnorePatternError, NothingMatchedError
from blobsync.base.process import Completed, ProcessRunner
from blobsync.code.git import ask_git
from blobsync.code.packed_files import Decision, code_rules, find_code, why
from blobsync.config.loader import load_cluster
from blobsync.config.model import Cluster, FolderEntry, StorageAccount
from tests.fakes.runner import ScriptedRunner
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

ACCOUNT = StorageAccount("aux_data/configs/a.yaml", "acct", "cont", "http://127.0.0.1:9/acct")


def write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")


def cluster(root: Path, **settings: Any) -> Cluster:
    folders = (FolderEntry("data", ACCOUNT, "p/data"), FolderEntry("out/deep", ACCOUNT, "p/deep"))
    return Cluster("aml", "aux_data/aml/aml.yaml", root, folders, **settings)


def found(root: Path, **settings: Any) -> set[str]:
    return {file.path for file in find_code(code_rules(cluster(root, **settings))).files}


def test_what_is_always_out(tmp_path: Path) -> None:
    inside = ("a.py", "out/shallow", "src/assets/logo.png", "src/data/x.py", "aux_data/aml/aml.yaml", ".github/ci.yaml")
    write(
        tmp_path,
        *inside,
        *("data/x", "out/deep/x", "assets/job/log", ".blobsync/index.sqlite", ".git/config", "sub/.git/config"),
        *("a/__pycache__/b.pyc", "b.pyc", ".mypy_cache/x", ".venv/pyvenv.cfg", ".venv/bin/x", "conda/bin/x"),
        *("conda/conda-meta/history", "src/.blobsync-0123abcd.part", ".blobsync-manifest.json", "tagged/x"),
    )
    (tmp_path / "tagged/CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# made by a cache")
    assert found(tmp_path) == set(inside)


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        ("logs/all", {"a.py", "logs/x"}),
        ("./logs/all/", {"a.py", "logs/x"}),
        ("{root}/logs", {"a.py"}),
        ("linked", {"a.py"}),
        ("/elsewhere", {"a.py", "logs/x", "logs/all/job/log"}),
        (".", {"a.py", "logs/x", "logs/all/job/log"}),
        ("", {"a.py", "logs/x", "logs/all/job/log"}),
    ],
)
def test_the_folder_for_logs_that_a_variable_names_is_out_as_well(named: str, kept: set[str], tmp_path: Path) -> None:
    root = tmp_path / "project"
    write(root, "a.py", "logs/x", "logs/all/job/log", "assets/job/log")
    if named == "linked":
        (root / "linked").symlink_to("logs")
    environ = {"AML_LOG_FOLDER": named.format(root=root)}
    assert {file.path for file in find_code(code_rules(cluster(root), environ=environ)).files} == kept


SECRET_FILES = (
    *(".env", ".env.local", ".envrc", "sub/prod.env", "id_rsa", "keys/id_ed25519", "id_rsa.bak", "tls/server.pem"),
    *("tls/server.key", "a.pfx", ".netrc", "_netrc", ".pgpass", ".git-credentials", ".aws/credentials", ".azure/x"),
    *(".ssh/config", "sub/.kube/config", ".docker/config.json", "kubeconfig", ".ENV", "rclone.conf"),
)


def test_files_that_hold_secrets_by_their_name_are_out_and_named(tmp_path: Path) -> None:
    inside = (".env.example", "id_map.py", "id_rsa.pub", "environment.py", "src/env", ".npmrc", "keys.py", "pem/a.py")
    write(tmp_path, *SECRET_FILES, *inside)
    tree = find_code(code_rules(cluster(tmp_path)))
    assert {file.path for file in tree.files} == set(inside)
    expected = {one.rpartition("/")[0] if f"/{one}".count("/.") and "/" in one else one for one in SECRET_FILES}
    assert {one.path for one in tree.left_out} == expected
    assert all("in .blobsyncignore includes it" in one.reason for one in tree.left_out)


def test_package_managers_files_are_out_only_with_a_token(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    (tmp_path / ".npmrc").write_text("//registry.example/:_authToken=abc\n")
    (tmp_path / ".pypirc").write_text("[pypi]\nusername = x\n")
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://me:pass@pypi.example/simple\n")
    assert found(tmp_path) == {"a.py", ".pypirc"}


def test_a_pattern_of_ours_that_names_a_secret_file_takes_it_in(tmp_path: Path) -> None:
    write(tmp_path, ".env", "tls/ca.pem", ".aws/config", ".gitignore", "sub/.env")
    (tmp_path / ".gitignore").write_text("!.env\n!*\n")
    assert found(tmp_path) == {".gitignore"}, "what git keeps is not what jobs may read"
    (tmp_path / ".blobsyncignore").write_text("!*\n!*/\n!**\n")
    assert found(tmp_path) == {".gitignore", ".blobsyncignore"}, "everything is not a name"
    (tmp_path / ".blobsyncignore").write_text("!/.env\n!*.pem\n!.aws/\n")
    assert found(tmp_path) == {".gitignore", ".blobsyncignore", ".env", "tls/ca.pem", ".aws/config"}
    assert found(tmp_path, ignore=("!sub/.env",)) >= {"sub/.env"}


def test_why_says_how_to_take_a_secret_file_in(tmp_path: Path) -> None:
    write(tmp_path, "sub/.env", ".aws/config")
    rules = code_rules(cluster(tmp_path))
    assert why(rules, "sub/.env").reason == (
        "a file of environment variables; '!/sub/.env' in .blobsyncignore includes it"
    )
    assert why(rules, ".aws/config").reason.startswith(
        "its folder .aws/ is left out: credentials of the AWS command line"
    )


def test_a_folder_entry_that_is_a_link_is_out(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "elsewhere/x")
    (tmp_path / "data").symlink_to("elsewhere")
    assert "data" not in found(tmp_path)


def test_zip_options_and_ignore_of_the_cluster_file(tmp_path: Path) -> None:
    write(tmp_path, "src/CMC/a", "src/b", "x.big", "keep.big", "c.log", ".gitignore")
    (tmp_path / ".gitignore").write_text("*.log\n")
    settings = {"zip_options": ("-x", "\\*src/CMC/\\*"), "ignore": ("*.big", "!keep.big", "!c.log")}
    assert found(tmp_path, **settings) == {"src/b", "keep.big", "c.log", ".gitignore"}


def test_folders_that_are_out_are_never_entered(tmp_path: Path) -> None:
    write(tmp_path, ".gitignore", "a.py", "build/deep/x", "data/deep/x", "node/x")
    (tmp_path / ".gitignore").write_text("build/\n/node\n")
    script = (
        "import sys; from pathlib import Path; from blobsync.code.packed_files import *; "
        "from blobsync.config.model import *; a = StorageAccount('a', 'a', 'c', 'http://h'); "
        "events = []; sys.addaudithook(lambda name, args: events.append(args) if name == 'os.scandir' else None); "
        "rules = code_rules(Cluster('aml', 'f', Path(sys.argv[1]), (FolderEntry('data', a, 'p'),))); "
        "find_code(rules); print(*[str(args[0]) for args in events], sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.split() == [str(tmp_path)]


def test_run_bits_and_links_are_kept_and_links_that_lead_out_are_not(tmp_path: Path) -> None:
    write(tmp_path, "run.sh", "src/a.py")
    (tmp_path / "run.sh").chmod(0o750)
    (tmp_path / "src/up").symlink_to("../run.sh")
    (tmp_path / "src/out").symlink_to("../../elsewhere")
    (tmp_path / "absolute").symlink_to("/etc")
    tree = find_code(code_rules(cluster(tmp_path)))
    assert {file.path: (file.mode, file.target) for file in tree.files} == {
        "run.sh": ("755", ""),
        "src/a.py": ("644", ""),
        "src/up": ("link", "../run.sh"),
    }
    assert {one.path for one in tree.left_out} == {"src/out", "absolute"}


def test_a_pipe_with_the_name_of_a_mark_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, "lib/a.py")
    os.mkfifo(tmp_path / "lib" / "CACHEDIR.TAG")
    tree = find_code(code_rules(cluster(tmp_path)))
    assert [file.path for file in tree.files] == ["lib/a.py"]
    assert [one.path for one in tree.left_out] == ["lib/CACHEDIR.TAG"]


def notes(root: Path, **settings: Any) -> tuple[str, ...]:
    return find_code(code_rules(cluster(root, **settings))).notes


def test_what_gitignore_leaves_out_is_counted_with_the_largest_and_how_to_include_it(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "ops/_C.so", "ops/_D.so", "build/lib/_E.so", "venv/pyvenv.cfg", "b.pyc", ".env", "x.log")
    write(tmp_path, "aux_data/configs/a.yaml", "huge.so")
    (tmp_path / ".gitignore").write_text("*.so\nbuild/\nvenv/\n*.pyc\n.env\naux_data/configs/\n")
    (tmp_path / ".amlignore").write_text("*.log\n")
    for name, size in (("ops/_C.so", 2000), (".env", 9000), ("huge.so", 20_000)):
        (tmp_path / name).write_bytes(bytes(size))
    said = "left out by .gitignore: 4 files and 1 folder (build/); the largest file is ops/_C.so (2 KB)"
    assert notes(tmp_path, max_file_size=10_000) == (f"{said}; '!/ops/_C.so' in .blobsyncignore includes it",)
    (tmp_path / ".blobsyncignore").write_text("!/ops/_C.so\n!*.so\n")
    assert {"ops/_C.so", "ops/_D.so", "huge.so"} <= found(tmp_path)
    assert notes(tmp_path) == (
        "left out by .gitignore: 1 file and 1 folder (build/); '!/build/' in .blobsyncignore includes it",
    )
    (tmp_path / ".blobsyncignore").write_text("!/build/\n!*.so\n")
    assert "build/lib/_E.so" in found(tmp_path)
    assert notes(tmp_path) == ("left out by .gitignore: 1 file",), "the secret one"
    (tmp_path / ".gitignore").write_text("/f*\n")
    write(tmp_path, "f1/x", "f2/x", "f3/x", "f4/x")
    assert notes(tmp_path)[0].startswith("left out by .gitignore: 4 folders (f1/, f2/, f3/, ...); '!/f1/' in")
    (tmp_path / ".gitignore").unlink()
    assert notes(tmp_path) == ()


def test_large_and_odd_files_are_left_out_and_named(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    (tmp_path / "large").write_bytes(bytes(2000))
    os.mkfifo(tmp_path / "fifo")
    tree = find_code(code_rules(cluster(tmp_path, max_file_size=1000)))
    assert [file.path for file in tree.files] == ["a.py"]
    assert {one.path: one.reason for one in tree.left_out} == {
        "large": "larger than max_file_size (0.001 MB)",
        "fifo": "neither a file, a folder nor a link",
    }
    allowed = find_code(code_rules(cluster(tmp_path, max_file_size=1000), max_file_size=3000))
    assert [file.path for file in allowed.files] == ["a.py", "large"]


def test_a_name_that_is_not_utf8_is_an_error_that_names_it(tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.py"))).write_text("x")
    with pytest.raises(ArchiveError, match=r"caf\\xe9\.py") as caught:
        found(tmp_path)
    assert caught.value.message.encode()
    (tmp_path / ".gitignore").write_bytes(b"caf\xe9.py\n")
    assert found(tmp_path) == {".gitignore"}


def test_a_bad_pattern_names_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, "src/a.py")
    (tmp_path / "src/.blobsyncignore").write_text("\nfoo\\\n")
    with pytest.raises(IgnorePatternError, match=r"src/\.blobsyncignore:2"):
        found(tmp_path)
    with pytest.raises(IgnorePatternError, match=r"aux_data/aml/aml\.yaml: ignore"):
        code_rules(cluster(tmp_path, ignore=("[",)))


@pytest.mark.parametrize("key", ["ignore", "zip_options"])
def test_a_bad_pattern_of_the_command_line_names_its_option(tmp_path: Path, key: str) -> None:
    ProjectFiles(tmp_path).cluster("ignore: ['*.tmp']\n")
    read = load_cluster(tmp_path, overrides={key: ["-x", "["]}, environ=NO_ENVIRON)
    with pytest.raises(IgnorePatternError, match=rf"^-p: {key}: bad pattern '\['"):
        code_rules(read)


def test_patterns_of_the_cluster_file_may_have_any_letters(tmp_path: Path) -> None:
    write(tmp_path, "bé.py", "日本.py", "a.py")
    assert found(tmp_path, ignore=("bé*", "日本.py")) == {"a.py"}


def test_why(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "keep.log", "x.log", "out/a/b", "data/x", "venv/pyvenv.cfg", "venv/x", "src/CMC/a/b")
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\nout/\n")
    rules = code_rules(cluster(tmp_path, zip_options=("-x", "src/CMC/*")))

    def told(path: str) -> Decision:
        return why(rules, path)

    assert told("a.py") == Decision("a.py", True, "no pattern matches it", size=1)
    assert told("keep.log") == Decision(
        "keep.log", True, "included again by a pattern", "!keep.log", ".gitignore", 2, 1
    )
    assert told("x.log") == Decision("x.log", False, "a pattern matches it", "*.log", ".gitignore", 1)
    below = told("out/a/b")
    assert (below.reason, below.pattern, below.line) == ("its folder out/ is left out: a pattern matches it", "out/", 3)
    assert told("data/x").reason.startswith("its folder data/ is left out: the folder entry data_folder")
    assert told("venv/x").reason == "venv/ is a virtual environment"
    assert told("src/CMC/a/b").file == "aux_data/aml/aml.yaml: zip_options"
    with pytest.raises(NothingMatchedError):
        told("nothing")


def test_why_agrees_with_the_walk(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "x.log", "out/a", "src/b.pyc", "src/c", "data/d", "src/deep/er/e")
    (tmp_path / ".gitignore").write_text("*.log\nout/\n")
    (tmp_path / "src/.amlignore").write_text("er\n")
    rules = code_rules(cluster(tmp_path))
    inside = {file.path for file in find_code(rules).files}
    everything = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert {path for path in everything if why(rules, path).included} == inside


def test_git_state_is_of_the_code_alone(tmp_path: Path) -> None:
    project = tmp_path / "proj"
    write(project, "a.py", "b.py", "gone.py", "data/x")
    run = ["git", "-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run([*run, "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run([*run, "add", "proj/a.py", "proj/b.py", "proj/gone.py"], cwd=tmp_path, check=True)
    before = ask_git(project, ProcessRunner())
    assert before is not None and before.commit is None
    subprocess.run([*run, "commit", "-qm", "all"], cwd=tmp_path, check=True)
    clean = ask_git(project, ProcessRunner())
    assert clean is not None and clean.commit and len(clean.commit) == 40
    assert not clean.state({"a.py", "b.py"}).dirty, "data/x is untracked, and no code"
    (project / "a.py").write_text("edited")
    (project / "gone.py").unlink()
    write(project, "new/c.py")
    now = ask_git(project, ProcessRunner())
    assert now is not None
    assert now.state({"a.py", "b.py", "new/c.py"}).uncommitted == ("a.py", "gone.py", "new/c.py")


def test_no_git_is_no_error(tmp_path: Path) -> None:
    assert ask_git(tmp_path, ScriptedRunner(lambda call: Completed(128, "", "fatal: not a git repository"))) is None
    assert ask_git(tmp_path, ProcessRunner(), {"PATH": str(tmp_path)}) is None


@pytest.mark.parametrize("how", ["fsmonitor", "clean", "process", "submodule", "signature", "a name with ="])
def test_a_repository_that_names_programs_runs_none(tmp_path: Path, how: str) -> None:
    root, ran = tmp_path / "project", tmp_path / "ran"
    write(root, "a.py", "lib/b.py")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    program.chmod(0o755)
    quiet = ("git", "-c", "user.name=x", "-c", "user.email=x@x")
    if how == "submodule":
        subprocess.run([*quiet, "init", "-q"], cwd=root / "lib", check=True)
        subprocess.run([*quiet, "add", "-A"], cwd=root / "lib", check=True)
        subprocess.run([*quiet, "commit", "-qm", "x"], cwd=root / "lib", check=True)
        subprocess.run([*quiet, "config", "core.fsmonitor", str(program)], cwd=root / "lib", check=True)
    subprocess.run([*quiet, "init", "-q"], cwd=root, check=True)
    subprocess.run([*quiet, "add", "-A"], cwd=root, check=True, capture_output=True)
    subprocess.run([*quiet, "commit", "-qm", "x"], cwd=root, check=True)
    (root / ".gitattributes").write_text("* filter=evil.one\n")
    if "=" in how:
        (root / ".gitattributes").write_text("* filter=a=b\n")
    settings = {
        "a name with =": {"filter.a=b.clean": str(program)},
        "fsmonitor": {"core.fsmonitor": str(program)},
        "clean": {"filter.evil.one.clean": str(program), "filter.evil.one.required": "true"},
        "process": {"filter.evil.one.process": str(program)},
        "submodule": {},
        "signature": {"log.showSignature": "true", "gpg.program": str(program)},
    }[how]
    for name, value in settings.items():
        subprocess.run([*quiet, "config", name, value], cwd=root, check=True)
    (root / "a.py").write_text("changed, with another size")
    report = ask_git(root, ProcessRunner())
    assert not ran.exists()
    if "=" in how:
        assert report is None
        return
    assert report is not None and report.commit
    assert "a.py" in report.state(["a.py", "lib/b.py"]).uncommitted


@pytest.mark.parametrize("how", ["core.sshCommand", "remote.origin.uploadpack"])
def test_a_missing_object_is_fetched_by_no_program_that_a_repository_names(tmp_path: Path, how: str) -> None:
    root, ran = tmp_path / "project", tmp_path / "ran"
    write(root, "a.py")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@x")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "x")):
        subprocess.run([*git, *words], cwd=root, check=True)
    assert ask_git(root, ProcessRunner()) is not None
    tree = subprocess.run([*git, "rev-parse", "HEAD^{tree}"], cwd=root, check=True, capture_output=True, text=True)
    (root / ".git/objects" / tree.stdout[:2] / tree.stdout[2:].strip()).unlink()
    settings = {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": "ssh://git.example/x" if how == "core.sshCommand" else str(root / ".git"),
        how: str(program),
    }
    for name, value in settings.items():
        subprocess.run([*git, "config", name, value], cwd=root, check=True)
    report = ask_git(root, ProcessRunner())
    assert not ran.exists()
    assert report is None, "what differs from a commit that cannot be read is not known"
    subprocess.run([*git, "status"], cwd=root, check=False, capture_output=True)
    assert ran.exists(), "a plain git status runs it"


def test_a_folder_with_the_files_of_a_bare_repository_is_no_repository(tmp_path: Path) -> None:
    told = subprocess.run(["git", "version"], check=True, capture_output=True, text=True).stdout.split()[2]
    if tuple(int(part) for part in told.split(".")[:2]) < (2, 38):
        pytest.skip(f"git {told} has no safe.bareRepository")
    root = tmp_path / "clone/project"
    write(root, "a.py")
    subprocess.run(["git", "init", "-q", "--bare", str(root)], check=True)
    subprocess.run(["git", "config", "core.bare", "false"], cwd=root, check=True)
    subprocess.run(["git", "config", "core.worktree", str(root)], cwd=root, check=True)
    assert ask_git(root, ProcessRunner()) is None


def test_a_work_tree_of_its_own_is_still_asked(tmp_path: Path) -> None:
    """``git worktree`` and a repository that is a sub-folder's parent are no bare repositories."""
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "proj/a.py")
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@x")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "x"), ("worktree", "add", "-q", str(second))):
        subprocess.run([*git, *words], cwd=first, check=True)
    (second / "proj/a.py").write_text("edited")
    report = ask_git(second / "proj", ProcessRunner())
    assert report is not None and report.state(["a.py"]).uncommitted == ("a.py",)
