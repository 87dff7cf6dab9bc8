"""``init`` against a real blob server: what arrives, what does not, and what a kill leaves."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.e2e.world import Container, Project, kill_tree, sha256, write_tree
from tests.servers.fault_proxy import Fault, fault_proxy
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

CODE = "exp/code.zip"
FILES = {
    "train.py": b"import src.model\n",
    "src/model.py": b"class Model: ...\n" * 400,
    "src/notes.log": b"left out\n",
    ".gitignore": b"*.log\n/build/\n",
    "build/lib.o": b"left out",
    "data/a.bin": b"data is no code",
}


def configure(project: Project, container: Container, *, url: str | None = None, path: str = CODE) -> None:
    project.configure(container, url=url)
    file = project.root / "aux_data/aml/aml.yaml"
    document = yaml.safe_load(file.read_text())
    document["config_param"]["code_path"] = {"azure_blob_config_file": "aux_data/configs/aml.yaml", "path": path}
    file.write_text(yaml.safe_dump(document))


@pytest.fixture
def coded(project: Project, container: Container) -> Project:
    configure(project, container)
    write_tree(project.root, FILES)
    (project.root / "train.py").chmod(0o755)
    return project


def names_in(archive: bytes) -> set[str]:
    with zipfile.ZipFile(io.BytesIO(archive)) as found:
        assert found.testzip() is None
        return set(found.namelist())


def test_init_uploads_the_code_and_nothing_else(coded: Project, container: Container, tmp_path: Path) -> None:
    done = coded.json("init")
    assert done.code == 0, str(done)
    digest = done.data["code_digest"]
    archive = container.get(CODE)
    assert names_in(archive) == {
        ".blobsync-manifest.json",
        ".gitignore",
        "aux_data/aml/aml.yaml",
        "src/model.py",
        "train.py",
    }
    assert sha256(container.get(f"{CODE}.d/{digest}.zip")) == sha256(archive)
    saved = tmp_path / "code.zip"
    saved.write_bytes(archive)
    subprocess.run(["unzip", "-q", saved, "-d", tmp_path / "out"], check=True)
    assert (tmp_path / "out/src/model.py").read_bytes() == FILES["src/model.py"]
    assert os.access(tmp_path / "out/train.py", os.X_OK) and not os.access(tmp_path / "out/src/model.py", os.X_OK)
    manifest = json.loads((tmp_path / "out/.blobsync-manifest.json").read_text())
    assert manifest["digest"] == digest
    key = container.key.encode()
    assert key not in archive and key.decode() not in done.out + done.err


def test_unchanged_code_is_not_uploaded_again(coded: Project, container: Container) -> None:
    first = coded.json("init")
    before = container.blob(CODE).get_blob_properties().etag
    again = coded.json("initi")
    assert (first.data["status"], again.data["status"]) == ("published", "unchanged"), str(again)
    assert container.blob(CODE).get_blob_properties().etag == before
    (coded.root / "train.py").write_text("import src.model  # edited\n")
    edited = coded.json("init")
    assert edited.data["status"] == "published"
    assert edited.data["code_digest"] != first.data["code_digest"]
    assert len(container.names(f"{CODE}.d/")) == 2
    # Back to the first code: kept, so it is copied inside the service.
    (coded.root / "train.py").write_bytes(FILES["train.py"])
    (coded.root / "train.py").chmod(0o755)
    back = coded.json("init")
    assert (back.data["status"], back.data["code_digest"]) == ("published", first.data["code_digest"])
    assert back.data["archive_bytes"] is None, "the archive was there already"
    assert sha256(container.get(CODE)) == sha256(container.get(f"{CODE}.d/{first.data['code_digest']}.zip"))


def test_dry_run_list_and_why_touch_nothing(coded: Project, container: Container) -> None:
    assert coded.json("init", "--dry-run").data["status"] == "would_publish"
    listed = coded.json("init", "--list").data["list"]
    assert {each["path"] for each in listed} >= {"train.py", "src/model.py"}
    why = coded.json("init", "--why", "src/notes.log").data
    assert (why["included"], why["pattern"], why["file"], why["line"]) == (False, "*.log", ".gitignore", 1)
    assert coded.json("init", "--why", "nothing.py").code == 4
    assert container.names() == []


def test_a_credential_stops_it(coded: Project, container: Container) -> None:
    secret = f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={container.key};"
    (coded.root / "src/settings.py").write_text(f"\nCONNECTION = '{secret}'\n")
    done = coded.json("init")
    assert (done.code, done.codes) == (2, {"secrets_found"}), str(done)
    assert "src/settings.py:2" in done.errors[0]["message"]
    assert container.key not in done.out + done.err
    assert container.names() == []
    assert coded.json("init", "--allow-secrets").code == 0


def test_without_code_path_it_says_what_to_add(project: Project, container: Container) -> None:
    project.configure(container)
    done = project.json("init")
    assert (done.code, done.codes) == (2, {"config_invalid"}), str(done)
    assert "code_path" in done.errors[0]["message"] + str(done.errors[0]["hint"])


def test_folder_uploads_the_same_files_one_by_one(coded: Project, container: Container) -> None:
    done = coded.json("init", "--folder")
    assert done.code == 0, str(done)
    assert set(container.names("exp/")) == {
        f"exp/code/{name}"
        for name in (".blobsync-manifest.json", ".gitignore", "aux_data/aml/aml.yaml", "src/model.py", "train.py")
    }
    assert container.get("exp/code/src/model.py") == FILES["src/model.py"]
    (coded.root / "src/model.py").write_text("edited\n")
    again = coded.json("init", "--folder")
    assert (again.code, again.data["transferred"], again.data["unchanged"]) == (0, 2, 3), str(again)


def test_two_uploads_of_the_code_at_once_leave_each_other_their_files(coded: Project, container: Container) -> None:
    write_tree(coded.root, {f"src/m{number}.py": b"x = 1\n" for number in range(200)})
    runs = [coded.start("init", "--folder") for _ in range(3)]
    assert [done.code for done in map(coded.finish, runs)] == [0, 0, 0]
    assert len(container.names("exp/code/src/")) == 201


def test_a_backslash_in_a_name_is_left_out_of_the_folder_with_the_reason(coded: Project, container: Container) -> None:
    """The service would take it for another file of the folder."""
    write_tree(coded.root, {"src/model\\old.py": b"old\n"})
    for uploaded in (5, 0):
        done = coded.json("init", "--folder")
        assert (done.code, done.codes, done.data["transferred"]) == (3, {"names_unsafe"}, uploaded), str(done)
        assert "its name contains a backslash, which the service takes for '/'" in str(done)
    assert "exp/code/src/model.py" in container.names("exp/")
    assert not [name for name in container.names("exp/") if "old" in name]


def test_initc_says_that_docker_is_missing(coded: Project, container: Container) -> None:
    write_tree(coded.root, {"compile.aml.sh": b"make\n"})
    coded.environ["PATH"] = str(coded.root / "no-programs-here")
    done = coded.json("initc", "-p", "{docker: {image: ubuntu}}")
    assert (done.code, done.codes) == (2, {"backend_unavailable"}), str(done)
    assert container.names() == []


def test_initc_packs_what_the_image_compiles(coded: Project, container: Container, tmp_path: Path) -> None:
    # A docker that runs the command here: what blobsync hands to it is what is tested.
    programs = tmp_path / "programs"
    docker = programs / "docker"
    write_tree(programs, {"docker": FAKE_DOCKER.encode()})
    docker.chmod(0o755)
    write_tree(coded.root, {"compile.aml.sh": b'echo compiled "$1" > made.log\n', "src/old.log": b"left out"})
    coded.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    done = coded.json("initc", "-p", "{docker: {image: 'ubuntu:24.04'}, compile_args: fast}")
    assert done.code == 0, str(done)
    archive = container.get(CODE)
    assert {"made.log", "compile.aml.sh", "train.py"} <= names_in(archive)
    assert "src/old.log" not in names_in(archive)
    with zipfile.ZipFile(io.BytesIO(archive)) as found:
        assert found.read("made.log") == b"compiled fast\n"
    assert not (coded.root / "made.log").exists()


FAKE_DOCKER = """\
#!/bin/sh
[ "$1" = version ] && exit 0
while [ "$1" != --volume ]; do shift; done
cd "${2%:/code}" || exit 9
while [ "$1" != ubuntu:24.04 ]; do shift; done
shift
exec "$@"
"""


@pytest.mark.kill
def test_killed_in_the_middle_it_leaves_the_old_archive_whole(
    project: Project, container: Container, service: str
) -> None:
    configure(project, container)
    write_tree(project.root, {"train.py": b"first\n"})
    assert project.run("init").code == 0
    old = sha256(container.get(CODE))
    chance = random.Random(5)
    write_tree(project.root, {f"big{number}.bin": chance.randbytes(9_000_000) for number in range(3)})
    # One block never arrives, so that the upload is not over before it is killed.
    with fault_proxy(service, Fault("hold", at=(2,), operations=("put block",))) as line:
        configure(project, container, url=line.url)
        process = project.start("init")
        started = wait_until(
            lambda: line.is_holding() and len(container.names(f"{CODE}.d/", uncommitted=True)) > 1, seconds=60
        )
        kill_tree(process.pid)
        process.communicate()
    assert started, "the upload did not begin"
    assert sha256(container.get(CODE)) == old
    assert not [path for path in (project.state / "code").iterdir() if path.name != "files.json"]
    configure(project, container)
    done = project.json("init")
    assert (done.code, done.data["status"]) == (0, "published"), str(done)
    assert "big2.bin" in names_in(container.get(CODE))


def test_a_code_path_without_zip_is_a_folder(project: Project, container: Container) -> None:
    configure(project, container, path="exp/code")
    write_tree(project.root, FILES)
    done = project.json("init")
    assert done.code == 0, str(done)
    assert "exp/code/train.py" in container.names()
    refused = project.json("initc", "-p", "{docker: {image: ubuntu}}")
    assert (refused.code, refused.codes) == (2, {"config_invalid"}), str(refused)


def test_uncommitted_files_go_in_and_are_reported(coded: Project, container: Container) -> None:
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@y")
    for words in (("init", "-q"), ("add", "train.py", "src/model.py", ".gitignore"), ("commit", "-qm", "all")):
        subprocess.run([*git, *words], cwd=coded.root, check=True)
    (coded.root / "train.py").write_text("edited\n")
    done = coded.run("init")
    assert done.code == 0, str(done)
    assert "with 2 files that differ from" in done.out and "train.py" in done.out
    with zipfile.ZipFile(io.BytesIO(container.get(CODE))) as found:
        assert found.read("train.py") == b"edited\n"
        git_state = json.loads(found.read(".blobsync-manifest.json"))["git"]
    assert (git_state["dirty"], git_state["uncommitted"]) == (True, ["aux_data/aml/aml.yaml", "train.py"])


def test_nothing_to_pack_is_an_error(coded: Project, container: Container) -> None:
    (coded.root / ".blobsyncignore").write_text("*\n")
    done = coded.json("init")
    assert (done.code, done.codes) == (1, {"archive"}), str(done)
    assert container.names() == []
