"""Servers in a stranger's project never receive the user's credentials.

The hosts do not exist; all requests to them arrive at a recording server, which the environment names as the proxy.
"""

from __future__ import annotations

import io
import json
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import urllib3
import yaml

from tests.e2e.world import Container, Project, on_flat_accounts, write_tree
from tests.servers.recording_server import RecordingServer
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

STRANGE = "https://acct.blob.core.windows.net.evil.example"
KEY = "a2V5IG9mIHRoZSBlbnZpcm9ubWVudCwgbWFya2VkIGZvciB0aGUgdGVzdA=="
SAS = "sv=2023-11-03&sp=rwdl&sr=c&se=2099-01-01T00:00:00Z&sig=c2lnbmF0dXJlIG1hcmtlZCBmb3IgdGhlIHRlc3Q%3D"


@pytest.fixture
def recorder() -> Iterator[RecordingServer]:
    with RecordingServer() as server:
        yield server


@pytest.fixture
def logged_in(project: Project, recorder: RecordingServer, tmp_path: Path) -> Project:
    """Every request arrives at the recorder; ``az`` prints a token, and records each call."""
    answer = {"accessToken": "marked-token", "expires_on": int(time.time()) + 3600, "tokenType": "Bearer"}
    az = tmp_path / "bin" / "az"
    az.parent.mkdir()
    az.write_text(f"#!/bin/sh\necho called >> '{tmp_path}/az-calls'\ncat <<'EOF'\n{json.dumps(answer)}\nEOF\n")
    az.chmod(0o755)
    project.environ |= {
        "PATH": f"{az.parent}:/usr/local/bin:/usr/bin:/bin",
        "HTTPS_PROXY": recorder.url,
        "HTTP_PROXY": recorder.url,
        "NO_PROXY": "",
        "AZURE_STORAGE_KEY": KEY,
        "AZURE_CLIENT_SECRET": SAS,
    }
    (project.root / "data").mkdir()
    (project.root / "data" / "a").write_text("a")
    return project


def write(project: Project, name: str, value: object) -> None:
    file = project.root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(value))
    file.chmod(0o600)


def hand_over(project: Project, endpoint: str, **more: str) -> None:
    """A project from a stranger."""
    account = {"account_name": "acct", "container_name": "box", "blob_endpoint": endpoint, **more}
    write(project, "aux_data/configs/a.yaml", account)
    entry = {"azure_blob_config_file": "aux_data/configs/a.yaml", "path": "p"}
    code = {"azure_blob_config_file": "aux_data/configs/a.yaml", "path": "code.zip"}
    write(
        project,
        "aux_data/aml/aml.yaml",
        {"config_param": {"data_folder": entry, "code_path": code}, "use_cli_auth": True},
    )


def asked_for_a_token(project: Project) -> bool:
    return (project.root.parent / "az-calls").exists()


@pytest.mark.parametrize("words", [("ls", "data"), ("u", "data"), ("d", "data"), ("rm", "-y", "data"), ("init",)])
def test_a_login_does_not_go_to_a_host_that_a_project_names(
    logged_in: Project, recorder: RecordingServer, words: tuple[str, ...]
) -> None:
    hand_over(logged_in, STRANGE)
    done = logged_in.json(*words)
    assert (done.code, done.codes) == (2, {"credential_invalid"}), done
    assert "your login is not sent there" in done.errors[0]["message"]
    assert "BLOBSYNC_TRUSTED_HOSTS=acct.blob.core.windows.net.evil.example" in done.errors[0]["hint"]
    assert recorder.requests == [] and not asked_for_a_token(logged_in)


def test_nor_does_the_doctor_take_it_there(logged_in: Project, recorder: RecordingServer) -> None:
    hand_over(logged_in, STRANGE)
    done = logged_in.json("doctor")
    assert done.code != 0 and "your login is not sent there" in done.out, done
    assert recorder.requests == [] and not asked_for_a_token(logged_in)


def begin_of_doctor(project: Project, recorder: RecordingServer, first: bytes = b"") -> None:
    """Only until a request that begins so: nothing responds, and all retries would take a quarter of a minute."""
    doctor = project.start("doctor")
    wait_until(lambda: any(each.startswith(first) for each in recorder.requests) or doctor.poll() is not None)
    doctor.terminate()
    project.finish(doctor)


def test_a_host_that_the_user_trusts_gets_it(logged_in: Project, recorder: RecordingServer) -> None:
    hand_over(logged_in, STRANGE)
    home = Path(logged_in.environ["HOME"])
    (home / ".config" / "blobsync").mkdir(parents=True, mode=0o700)
    (home / ".config" / "blobsync" / "config.yaml").write_text("trusted_hosts: [.evil.example]\n")
    begin = b"CONNECT acct.blob.core.windows.net.evil.example:443"
    begin_of_doctor(logged_in, recorder, begin)
    assert any(each.startswith(begin) for each in recorder.requests)


def test_a_key_of_the_environment_does_not_go_to_a_host_that_a_project_names(
    logged_in: Project, recorder: RecordingServer
) -> None:
    hand_over(logged_in, STRANGE, account_key="${AZURE_STORAGE_KEY}")
    for words in (("ls", "data"), ("url", "data/a")):
        done = logged_in.json(*words)
        assert (done.code, done.codes) == (2, {"credential_invalid"}), done
        assert "a secret from outside the project is not sent there" in done.errors[0]["message"]
    assert recorder.requests == []


def test_a_key_that_stands_beside_its_endpoint_goes_there(logged_in: Project, recorder: RecordingServer) -> None:
    hand_over(logged_in, STRANGE, account_key=KEY)
    begin_of_doctor(logged_in, recorder)
    assert recorder.requests


def test_no_secret_goes_over_plain_http(logged_in: Project, recorder: RecordingServer) -> None:
    hand_over(logged_in, "http://acct.blob.core.windows.net", sas_token=SAS)
    done = logged_in.json("ls", "data")
    assert (done.code, done.codes) == (2, {"credential_invalid"}), done
    assert "plain http" in done.errors[0]["message"]
    assert recorder.requests == []


def test_a_project_gets_no_variable_that_it_was_not_allowed(logged_in: Project, recorder: RecordingServer) -> None:
    hand_over(logged_in, f"{recorder.url}/acct", sas_token="${AZURE_CLIENT_SECRET}")
    done = logged_in.json("ls", "data")
    assert done.code == 2, done
    assert "must not use the environment variable AZURE_CLIENT_SECRET" in done.errors[0]["message"]
    assert recorder.requests == []
    logged_in.environ["BLOBSYNC_ALLOWED_VARIABLES"] = "AZURE_CLIENT_SECRET"
    logged_in.run("doctor")
    assert any(b"sig=c2lnbmF0dXJl" in each for each in recorder.requests)


@pytest.mark.parametrize("key", ["experiment_name", "setup"])
def test_variables_stand_in_credentials_and_env_only(logged_in: Project, key: str) -> None:
    hand_over(logged_in, STRANGE, account_key=KEY)
    done = logged_in.json("resolve", "data", "-p", f"{{{key}: 'a ${{BLOBSYNC_X}}'}}")
    assert done.code == 2 and "in credentials and in env only" in done.errors[0]["message"], done


def test_a_login_does_not_go_to_a_management_endpoint_that_a_project_names(
    logged_in: Project, recorder: RecordingServer
) -> None:
    hand_over(logged_in, STRANGE, account_key=KEY)
    place = {"subscription_id": "s", "resource_group": "g", "workspace_name": "w"}
    write(logged_in, "aux_data/aml/config.json", {**place, "management_endpoint": "https://management.evil.example"})
    aml = {"platform": "aml", "compute_target": "c", "aml_config": "aux_data/aml/config.json"}
    done = logged_in.json("-p", json.dumps(aml), "summary")
    assert done.code == 2 and "your login is not sent there" in done.errors[0]["message"], done
    assert recorder.requests == [] and not asked_for_a_token(logged_in)


def test_init_leaves_secret_files_out_and_says_so(project: Project, container: Container) -> None:
    project.configure(container, extra={"env": {"WANDB_API_KEY": "hunter22"}})
    cluster = yaml.safe_load((project.root / "aux_data/aml/aml.yaml").read_text())
    cluster["config_param"]["code_path"] = {"azure_blob_config_file": "aux_data/configs/aml.yaml", "path": "code.zip"}
    write(project, "aux_data/aml/aml.yaml", cluster)
    for name in (".env", "id_rsa", ".aws/credentials", "a.py", ".envrc"):
        (project.root / name).parent.mkdir(exist_ok=True)
        (project.root / name).write_text("DB_PASSWORD=hunter2\n")
    (project.root / ".blobsyncignore").write_text("!/.envrc\n")
    done = project.json("init")
    assert done.code == 0, done
    assert {one["path"] for one in done.data["left_out"]} == {
        *(".env", "id_rsa", ".aws", "aux_data/aml/aml.yaml", "aux_data/configs/aml.yaml"),
    }
    assert ".env" in project.run("init", "--list").out
    with zipfile.ZipFile(io.BytesIO(container.get("code.zip"))) as archive:
        packed = {name for name in archive.namelist() if name != ".blobsync-manifest.json"}
    assert packed == {"a.py", ".envrc", ".blobsyncignore"}


def test_what_a_server_or_a_file_echoes_of_a_key_is_not_told(project: Project, container: Container) -> None:
    """The account key as a folder's name in the container, and as a blob: it is redacted everywhere."""
    key = container.key.replace("/", "_")
    project.configure(container, path=f"p/{container.key.replace('/', '%2F')}")
    for words in (("resolve", "data"), ("config", "check"), ("doctor",), ("ls",), ("ls", "data", "-vv")):
        for more in ((), ("--json",)):
            done = project.run(*words, *more)
            # The short form names no path.
            assert "***" in done.out + done.err or (words, more) == (("config", "check"), ()), done
            for form in (container.key, quote(container.key, safe=""), quote(container.key), key):
                assert form not in done.out + done.err, done


def test_a_key_in_the_line_of_the_container_is_not_told(project: Project, container: Container) -> None:
    project.configure(container)
    (project.root / "data").mkdir()
    (project.root / "data/a").write_text("a")
    (account,) = (project.root / "aux_data/configs").glob("*.yaml")
    # Of 32 bytes: unlike the 88 characters of an account key, its 44 have no recognizable form.
    key = "dGhpcnR5LXR3byByYW5kb20gYnl0ZXMgb2YgYSBrZXk="
    values = yaml.safe_load(account.read_text())
    account.write_text(yaml.safe_dump({**values, "container_name": key}))
    for words in (("u", "data"), ("ls",), ("config", "check"), ("doctor",), ("u", "data", "-vv")):
        for more in ((), ("--json",)):
            done = project.run(*words, *more)
            assert done.code != 0
            assert "container_name" in done.out + done.err and "44 characters" in done.out + done.err, done
            assert key[3:-1] not in done.out + done.err, done


@pytest.mark.parametrize("way", ["curl", "urllib3", "azcopy"])
def test_requests_to_this_machine_bypass_the_proxy(
    with_azcopy: Project, container: Container, recorder: RecordingServer, way: str
) -> None:
    with_azcopy.configure(container)
    proxies = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")
    with_azcopy.environ |= {**dict.fromkeys(proxies, recorder.url), "NO_PROXY": "", "no_proxy": ""}
    if way != "azcopy":
        with_azcopy.environ["BLOBSYNC_TRANSPORT"] = way
    write_tree(with_azcopy.root / "data", {"a": b"of the project", "sub/b": b"too"})
    done = with_azcopy.json("u", "data", "--engine", "azcopy" if way == "azcopy" else "direct")
    assert done.code == 0, done
    assert len(container.names()) == 2
    assert recorder.requests == []


def share(project: Project, container: Container) -> None:
    """A folder beside which lie the code archive and another folder with the same beginning."""
    project.configure(container)
    for name in ("data/a/1", "data/a/b/2", "data/ab/3", "code.zip"):
        container.put(name, name.encode())


def fetch(url: str, method: str = "GET") -> int:
    return urllib3.request(method, url, retries=False).status


@on_flat_accounts
def test_a_link_for_a_folder_needs_a_choice(project: Project, container: Container) -> None:
    share(project, container)
    done = project.json("url", "data/a")
    assert (done.code, done.codes) == (2, {"usage"}), done
    assert "--each" in done.errors[0]["hint"] and "--container" in done.errors[0]["hint"]
    assert "sig=" not in done.out + done.err
    assert project.json("url", "data/a", "--each", "--container").code == 2
    assert project.json("url", "data/nothing").code == project.json("url", "data/nothing", "--each").code == 4


def test_each_blob_of_a_folder_gets_a_link_of_its_own(project: Project, container: Container) -> None:
    share(project, container)
    done = project.json("url", "data/a", "--each")
    assert done.code == 0, done
    urls = {each["path"]: each["url"] for each in done.data["urls"]}
    assert set(urls) == {"data/a/1", "data/a/b/2"}
    assert {each["scope"] for each in done.data["urls"]} == {"blob"} and done.data["warnings"] == []
    for path, url in urls.items():
        assert fetch(url) == 200 and "sr=b" in url
        assert fetch(url.replace(path, "code.zip")) == fetch(url.replace(path, "data/ab/3")) == 403
        assert fetch(url, "DELETE") == 403


def test_the_container_is_handed_out_with_a_warning_and_on_request_only(project: Project, container: Container) -> None:
    share(project, container)
    done = project.json("url", "data/a", "--container", "--permission", "rl")
    assert done.code == 0, done
    [link] = done.data["urls"]
    assert link["scope"] == "container" and "sr=c" in link["url"]
    assert f"everything in the container {container.name}" in done.data["warnings"][0]
    told = project.run("url", "data/a", "--container")
    assert "opens everything" in told.err and "sig=" in told.out


def test_a_directory_is_signed_for_where_the_account_has_directories(project: Project) -> None:
    """By the published form of ``sr=d``: no emulator has directories."""
    blob = (
        b"<Blob><Name>data/a/1</Name><Properties><Content-Length>1</Content-Length><Etag>1</Etag></Properties></Blob>"
    )
    page = b"<?xml version='1.0'?><EnumerationResults><Blobs>" + blob + b"</Blobs><NextMarker/></EnumerationResults>"
    head = b"HTTP/1.1 200 OK\r\nx-ms-is-hns-enabled: %s\r\nContent-Length: %d\r\n\r\n"
    missing = b"HTTP/1.1 404 Not Found\r\nx-ms-error-code: BlobNotFound\r\nContent-Length: 0\r\n\r\n"
    for enabled, code in ((b"true", 0), (b"false", 2)):
        answers = {"GET /acct/box": head % (enabled, len(page)) + page, "HEAD /acct/box/data/a": missing}
        with RecordingServer(answers) as server:
            project.configure(Container(server.url, "acct", KEY, "box"))
            done = project.json("url", "data/a", "--permission", "rl")
            assert done.code == code, done
            assert any(b"restype=account&comp=properties" in each for each in server.requests)
        if code == 0:
            [link] = done.data["urls"]
            assert link["scope"] == "folder" and "sr=d" in link["url"] and "sdd=2" in link["url"]


def test_a_sas_is_not_given_away_for_less_than_it_opens(project: Project, container: Container) -> None:
    share(project, container)
    project.configure(container, sas=container.sas("rl"), key=False)
    refused = project.json("url", "data/a/1", "--permission", "rl")
    assert (refused.code, refused.codes) == (2, {"credential_invalid"}), refused
    assert project.json("url", "data/a/1", "--permission", "rl", "--container").code == 0
    project.configure(container, sas=container.account_sas("rl"), key=False)
    assert project.json("url", "data/a/1", "--permission", "rl", "--container").code == 2


def test_a_key_beside_a_sas_makes_what_is_handed_out(project: Project, container: Container) -> None:
    share(project, container)
    project.configure(container, sas=container.account_sas())
    file = project.root / "aux_data/configs/aml.yaml"
    file.write_text(f"{file.read_text()}account_key: {container.key}\n")
    [link] = project.json("url", "data/a/1").data["urls"]
    assert "sr=b" in link["url"] and "srt=" not in link["url"]
    assert fetch(link["url"]) == 200 and fetch(link["url"].replace("data/a/1", "code.zip")) == 403


def test_a_name_with_an_escaped_slash_is_signed_for_as_it_is(project: Project, container: Container) -> None:
    project.configure(container)
    container.put("data/other/x", b"x")
    container.put("data/a/..%2Fother", b"y")
    done = project.json("url", "data/a", "--each")
    assert [each["path"] for each in done.data["urls"]] == ["data/a/..%2Fother"], done
    assert fetch(done.data["urls"][0]["url"]) == 200
