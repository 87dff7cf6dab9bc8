"""Stored logins of users, and the files that ``config new`` writes for them."""

from __future__ import annotations

import base64
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from blobsync.base.errors import ConfigError, CredentialError, UsageError
from blobsync.base.locations import BlobContainer
from blobsync.config.account_files import files_for_login, folder_in_use
from blobsync.config.check import check_project
from blobsync.config.loader import load_cluster
from blobsync.config.logins import forget_login, load_login, logins_file, parse_login, save_login, stored_logins
from blobsync.config.scaffold import (
    StorageAnswers,
    base_folder,
    first_files,
    folder_names,
    ignore_data,
    split_account,
    write_files,
)
from blobsync.store.connect import signer_for
from tests.unit.project_files import ProjectFiles

PLACE = BlobContainer("acct", "cont", "https://acct.blob.core.windows.net")
OTHER = BlobContainer("acct", "other", PLACE.endpoint)
SAS = "sv=2021-12-02&sp=rwdl&sig=c2VudGluZWw%3D"
KEY = "a2V5a2V5a2V5"


@pytest.fixture
def environ(tmp_path: Path) -> Mapping[str, str]:
    return {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "own")}


@pytest.fixture
def project(tmp_path: Path, environ: Mapping[str, str]) -> Path:
    """The account file of ``config new`` for an account with a SAS."""
    root = tmp_path / "project"
    root.mkdir()
    write_files(root, first_files(StorageAnswers("acct", "cont", "sas", base="me/demo")))
    ignore_data(root, ("data", "output"), environ)
    return root


def test_a_login_is_for_its_container_alone_and_readable_for_its_owner_alone(environ: Mapping[str, str]) -> None:
    save_login(PLACE, parse_login(f"?{SAS}", PLACE), environ)
    save_login(OTHER, parse_login(KEY, OTHER), environ)
    assert [load_login(each, environ).kind for each in (PLACE, OTHER)] == ["sas", "key"]  # type: ignore[union-attr]
    assert load_login(BlobContainer("acct", "cont", "https://acct.blob.core.chinacloudapi.cn"), environ) is None
    assert stat.S_IMODE(logins_file(environ).stat().st_mode) == 0o600
    assert stat.S_IMODE(logins_file(environ).parent.stat().st_mode) == 0o700
    assert stored_logins(environ) == {f"{PLACE}": "sas", f"{OTHER}": "key"}
    assert forget_login(PLACE, environ) and not forget_login(PLACE, environ)
    assert load_login(PLACE, environ) is None and load_login(OTHER, environ) is not None
    assert "sentinel" not in repr(parse_login(SAS, PLACE)) and "c2Vud" not in repr(parse_login(SAS, PLACE))


def test_logins_that_are_stored_at_once_are_all_kept(environ: Mapping[str, str]) -> None:
    places = [BlobContainer("acct", f"cont{number}", PLACE.endpoint) for number in range(30)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda place: save_login(place, parse_login(KEY, place), environ), places))
    assert stored_logins(environ).keys() == {str(place) for place in places}


@pytest.mark.parametrize(
    ("given", "kind"),
    [(SAS, "sas"), (f"?{SAS}\n", "sas"), (f"{PLACE}?{SAS}", "sas"), (f"{PLACE.endpoint}/?{SAS}", "sas"), (KEY, "key")],
)
def test_what_was_pasted_is_recognised(given: str, kind: str) -> None:
    login = parse_login(given, PLACE)
    assert (login.kind, login.secret.reveal()) == (kind, KEY if kind == "key" else SAS)


@pytest.mark.parametrize(
    "given", ["", "not a key!", f"https://acct.blob.core.windows.net/other?{SAS}", f"https://evil.example/cont?{SAS}"]
)
def test_what_is_no_login_for_the_container_is_refused_without_being_quoted(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_login(given, PLACE)
    assert "sig=" not in caught.value.message.replace("(it contains sig=)", "") and "not a key" not in str(caught.value)


@pytest.mark.parametrize("text", ["{", '{"logins": 3}', '{"logins": {"x": 1}}'])
def test_a_damaged_file_of_logins_is_named(environ: Mapping[str, str], text: str) -> None:
    save_login(PLACE, parse_login(KEY, PLACE), environ)
    logins_file(environ).write_text(text)
    with pytest.raises(ConfigError, match="damaged"):
        load_login(PLACE, environ)


def test_logins_that_others_can_read_are_not_used(environ: Mapping[str, str]) -> None:
    save_login(PLACE, parse_login(KEY, PLACE), environ)
    logins_file(environ).chmod(0o640)
    with pytest.raises(ConfigError, match="readable by other users"):
        load_login(PLACE, environ)


def test_new_files_hold_no_secret_and_name_the_one_step_that_is_missing(
    project: Path, environ: Mapping[str, str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster(project, environ=environ)
    assert caught.value.message.endswith("is 'sas', but there is no sas_token, here or in your logins")
    assert caught.value.hint == "store your own: blobsync login aux_data/configs/storage.yaml"
    assert files_for_login(project, environ) == ("aux_data/configs/storage.yaml",)
    assert folder_in_use(project, "aux_data/configs/storage.yaml") == "me/demo/code"
    save_login(PLACE, parse_login(SAS, PLACE), environ)
    (project / ".git").mkdir()
    checked = check_project(project, environ=environ)
    assert [(item.problems, item.warnings) for item in checked] == [((), ())] * 2
    cluster = load_cluster(project, environ=environ)
    account = cluster.folders[0].account
    assert (account.credential, account.from_outside) == ("sas", frozenset({"sas"}))
    assert [entry.remote.name for entry in cluster.folders] == ["me/demo/data", "me/demo/output"]
    ignored = (project / ".gitignore").read_text()
    assert "/data/\n" in ignored and "aux_data" not in ignored


def test_a_login_of_another_kind_than_the_file_asks_for_is_not_used(project: Path, environ: Mapping[str, str]) -> None:
    save_login(PLACE, parse_login(KEY, PLACE), environ)
    with pytest.raises(ConfigError, match="is 'sas', but there is no sas_token"):
        load_cluster(project, environ=environ)


def test_a_file_with_its_own_credential_and_one_for_an_identity_use_no_login(
    tmp_path: Path, environ: Mapping[str, str]
) -> None:
    files = ProjectFiles(tmp_path)
    files.cluster("config_param:\n  data_folder: {azure_blob_config_file: aux_data/configs/acct.yaml, path: p}\n")
    save_login(PLACE, parse_login(SAS, PLACE), environ)
    assert load_cluster(tmp_path, environ=environ).folders[0].account.credential == "key"
    assert files_for_login(tmp_path, environ) == ()
    bare = "account_name: acct\ncontainer_name: cont\n"
    for text, credential in ((bare, "sas"), (bare + "auth: identity\n", "identity"), (bare + "auth: sas\n", "sas")):
        files.account("acct", text)
        assert load_cluster(tmp_path, environ=environ).folders[0].account.credential == credential


def test_a_login_does_not_go_to_a_host_that_the_project_chose(tmp_path: Path, environ: Mapping[str, str]) -> None:
    files = ProjectFiles(tmp_path)
    files.account("acct", "account_name: acct\ncontainer_name: cont\nblob_endpoint: https://evil.example\n")
    files.cluster("config_param:\n  data_folder: {azure_blob_config_file: aux_data/configs/acct.yaml, path: p}\n")
    save_login(BlobContainer("acct", "cont", "https://evil.example"), parse_login(KEY, PLACE), environ)
    account = load_cluster(tmp_path, environ=environ).folders[0].account
    with pytest.raises(CredentialError, match="a secret from outside the project is not sent there"):
        signer_for(account, environ=environ)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("MyAccount", ("myaccount", None, None)),
        ("https://acct.blob.core.windows.net/cont/a", ("acct", None, "cont")),
        (
            "https://acct.blob.core.chinacloudapi.cn",
            ("acct", "https://acct.blob.core.chinacloudapi.cn", None),
        ),
        ("http://127.0.0.1:4711/one/box", ("one", "http://127.0.0.1:4711/one", "box")),
    ],
)
def test_an_account_is_named_by_its_name_or_by_a_url(given: str, expected: tuple[str, str | None, str | None]) -> None:
    assert split_account(given) == expected


@pytest.mark.parametrize("given", [f"{PLACE}?{SAS}", "https://", "http://127.0.0.1:1/"])
def test_a_sas_is_not_taken_where_it_is_shown_nor_a_url_without_an_account(given: str) -> None:
    with pytest.raises(UsageError):
        split_account(given)


@pytest.mark.parametrize("given", ["", " , ", "../up", ".git", "aux_data/x", "a//b", "/abs", "data, ~/x", "a\\b"])
def test_folders_that_no_entry_can_have_are_refused(given: str) -> None:
    with pytest.raises(UsageError):
        folder_names(given)
    assert folder_names("data/, ./output,data") == ("data", "output")


@pytest.mark.parametrize("read", [folder_names, base_folder])
def test_a_key_that_was_pasted_too_early_is_no_folder(read: Callable[[str], object]) -> None:
    key = base64.b64encode(bytes(range(7, 71))).decode()
    with pytest.raises(UsageError, match="looks like a credential") as refused:
        read(key)
    assert key not in str(refused.value)


def test_another_cluster_gets_files_of_its_own_name() -> None:
    cluster, account = first_files(StorageAnswers("acct", "cont", "key", cluster="eu", folders=("data",)))
    assert (cluster.name, account.name) == ("aux_data/aml/eu.yaml", "aux_data/configs/eu.yaml")
    assert yaml.safe_load(cluster.text)["config_param"]["data_folder"]["path"] == "data"
    with pytest.raises(UsageError):
        first_files(StorageAnswers("acct", "cont", "key", cluster="../eu"))
