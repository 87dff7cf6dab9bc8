"""Code at code_path from a stranger does not run unless the user names or trusts its digest."""

from __future__ import annotations

import io
import re
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import Container, Done, Project, write_tree

pytestmark = pytest.mark.e2e

CODE = "exp/code.zip"


def coded(project: Project, container: Container, text: bytes, *, path: str = CODE) -> Project:
    """A project whose code prints ``text``, with this machine as the cluster."""
    project.configure(container)
    file = project.root / "aux_data/aml/aml.yaml"
    document = yaml.safe_load(file.read_text())
    document["platform"] = "local"
    document["runtime"] = {"python": sys.executable, "scratch": str(project.root.parent / "scratch")}
    document["config_param"] = {"code_path": {"azure_blob_config_file": "aux_data/configs/aml.yaml", "path": path}}
    file.write_text(yaml.safe_dump(document))
    write_tree(project.root, {"says.txt": text})
    return project


@pytest.fixture
def mine(project: Project, container: Container) -> Project:
    return coded(project, container, b"mine")


@pytest.fixture
def theirs(tmp_path: Path, container: Container) -> Project:
    """A colleague with a clone, and with a home of their own."""
    for name in ("their-project", "their-home"):
        (tmp_path / name).mkdir()
    environ = {"HOME": str(tmp_path / "their-home")}
    return coded(Project(tmp_path / "their-project", environ), container, b"theirs")


def published(project: Project, text: bytes | None = None) -> str:
    if text is not None:
        (project.root / "says.txt").write_bytes(text)
    done = project.json("init")
    assert done.code == 0, str(done)
    digest: str = done.data["code_digest"]
    return digest


def submit(project: Project, *options: str) -> Done:
    return project.run("--json", "submit", "--wait", *options, "cat says.txt")


def said(project: Project, *options: str) -> str:
    """The output of the job's code."""
    done = project.run("submit", "--wait", *options, "cat says.txt")
    assert done.code == 0, str(done)
    return done.out


def refusal(project: Project, done: Done, digest: str) -> str:
    """Check that nothing was submitted; returns the message and its hint."""
    assert (done.code, done.codes) == (2, {"code_untrusted"}), str(done)
    message, hint = done.errors[0]["message"], done.errors[0]["hint"]
    assert digest in message and f"blobsync config trust-code {digest}" in hint
    assert f"blobsync submit --code {digest} CMD" in hint
    assert project.json("q").data["jobs"] == []
    return f"{message}; {hint}"


def archive(text: bytes) -> bytes:
    """A zip of any other program."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as target:
        target.writestr("says.txt", text)
    return made.getvalue()


def test_code_that_somebody_else_published_runs_only_if_it_is_named_or_trusted(mine: Project, theirs: Project) -> None:
    published(mine)
    foreign = published(theirs)
    for more in ((), ("--dry-run",)):
        told = refusal(mine, submit(mine, *more), foreign)
        assert "was not published from here" in told
    # For one job only; the next one is refused again.
    done = submit(mine, "--code", foreign)
    assert done.code == 0 and "which --code names, not the code here" in done.err, str(done)
    assert done.data["code_digest"] == foreign
    assert submit(mine).codes == {"code_untrusted"}
    assert "theirs" in said(mine, "--trust-code", foreign)
    done = submit(mine)
    assert done.code == 0 and "was not published from here and which you trust" in done.err, str(done)
    assert mine.json("config", "trust-code").data["trusted"] == [foreign]
    # The digest is trusted, not its publisher.
    second = published(theirs, b"theirs again")
    done = submit(mine)
    assert done.codes == {"code_untrusted"} and second in done.errors[0]["message"], str(done)
    wrong = submit(mine, "--trust-code", foreign)
    assert wrong.codes == {"code_untrusted"} and f"holds the code {second}, and not {foreign}" in str(wrong)
    # The last upload from here needs no digest, nor does the code here.
    published(mine)
    assert "mine" in said(mine)
    assert mine.json("config", "trust-code", "--forget", foreign).data["trusted"] == []
    published(theirs, b"theirs")
    assert submit(mine).codes == {"code_untrusted"}


def test_a_digest_that_is_written_beside_the_code_is_not_believed(mine: Project, container: Container) -> None:
    """An attacker's archive with matching metadata, uploaded without blobsync."""
    digest = published(mine)
    (mine.root / "says.txt").write_bytes(b"edited since")
    other = archive(b"evil")
    claimed = "ab" * 32
    container.put(f"{CODE}.d/{claimed}.zip", other)
    container.put(CODE, other, metadata={"blobsync_digest": claimed})
    refusal(mine, submit(mine), claimed)
    # The node verifies the code against the named digest, which matches none.
    assert submit(mine, "--code", claimed).code == 72
    # With its own digest the earlier code runs, whatever is at code_path.
    assert "mine" in said(mine, "--code", digest)
    container.put(f"{CODE}.d/{digest}.zip", other)
    assert submit(mine, "--code", digest).code == 72


def test_an_earlier_upload_that_somebody_puts_back_is_refused(mine: Project, container: Container) -> None:
    first = published(mine)
    before = container.get(CODE)
    published(mine, b"mine, mended")
    (mine.root / "says.txt").write_bytes(b"edited since")
    assert "mine, mended" in said(mine)
    container.put(CODE, before, metadata={"blobsync_digest": first})
    done = submit(mine)
    assert done.codes == {"code_untrusted"} and re.search("which you published on .* not that of your last", str(done))


@pytest.mark.soak
def test_an_archive_without_a_digest_is_held_to_its_content(mine: Project, container: Container) -> None:
    container.put(CODE, archive(b"of another program"))
    done = submit(mine)
    assert done.codes == {"code_untrusted"}, str(done)
    found = re.search("digest ([0-9a-f]{64})", done.errors[0]["message"])
    assert found
    refusal(mine, done, found[1])
    assert "of another program" in said(mine, "--trust-code", found[1])
    assert "of another program" in said(mine)
    container.put(CODE, archive(b"evil"))
    assert submit(mine).codes == {"code_untrusted"}
    # A digest that no longer exists is reported.
    assert submit(mine, "--code", found[1]).code == 4


def test_who_never_ran_init_gets_one_sentence_and_the_command(mine: Project, theirs: Project) -> None:
    foreign = published(theirs)
    done = mine.run("submit", "cat says.txt")
    assert done.code == 2 and len(done.err.splitlines()) == 2, str(done)
    command = re.search(r"blobsync (config trust-code [0-9a-f]{64})", done.err)
    assert command and foreign in command[1]
    assert mine.run(*command[1].split()).code == 0
    assert "theirs" in said(mine)
    # The same code here and there is the user's own decision, such as a pull.
    (mine.root / "says.txt").write_bytes(b"theirs, pulled")
    published(theirs, b"theirs, pulled")
    assert "theirs, pulled" in said(mine)


@pytest.mark.soak
def test_a_folder_of_code_is_held_to_its_list(
    project: Project, theirs: Project, container: Container, tmp_path: Path
) -> None:
    mine = coded(project, container, b"mine", path="exp/code")
    (mine.root / "run.sh").write_text("echo from a script\n")
    (mine.root / "run.sh").chmod(0o755)
    (mine.root / "again.txt").symlink_to("says.txt")
    write_tree(mine.root, {"old.txt": b"old"})
    coded(theirs, container, b"theirs", path="exp/code")
    digest = published(mine)
    (mine.root / "old.txt").unlink()
    assert published(mine) != digest
    # Files that are no longer code stay in the folder, but do not get to nodes; run bits and links do.
    container.put("exp/code/sitecustomize.py", b"print('evil')")
    done = mine.run("submit", "--wait", "ls; ./run.sh; readlink again.txt")
    assert done.code == 0 and "old.txt" not in done.out and "sitecustomize" not in done.out, str(done)
    assert "from a script" in done.out and done.out.splitlines()[-1] == "says.txt"
    container.put("exp/code/says.txt", b"evil")
    assert submit(mine).code == 72
    foreign = published(theirs)
    assert submit(mine).codes == {"code_untrusted"}
    assert "theirs" in said(mine, "--code", foreign)
    assert "mine" in said(mine, "--init")


def test_resubmit_keeps_to_the_code_of_its_job(mine: Project, theirs: Project) -> None:
    digest = published(mine)
    job = submit(mine).data["job_id"]
    foreign = published(theirs)
    again = mine.json("resubmit", job)
    assert (again.code, again.data["code_digest"]) == (0, digest), str(again)
    done = mine.json("resubmit", job, "--latest-code")
    assert done.codes == {"code_untrusted"} and foreign in done.errors[0]["message"], str(done)


def test_what_is_known_is_the_users_own_and_of_this_project(mine: Project, theirs: Project, tmp_path: Path) -> None:
    digest = published(mine)
    (mine.root / "says.txt").write_bytes(b"edited since")
    kept = list((tmp_path / "home/.config/blobsync/trusted-code").glob("*.json"))
    assert len(kept) == 1 and kept[0].stat().st_mode & 0o077 == 0
    # A file that others can write is ignored, and another project of the user has its own.
    kept[0].chmod(0o666)
    done = submit(mine)
    assert (done.code, done.codes) == (2, {"config_invalid"}) and "chmod go-w" in str(done), str(done)
    kept[0].chmod(0o600)
    assert "mine" in said(mine)
    other = replace(theirs, environ=mine.environ)
    done = submit(other)
    assert done.codes == {"code_untrusted"} and digest in done.errors[0]["message"], str(done)
