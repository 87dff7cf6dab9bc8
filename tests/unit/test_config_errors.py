"""Broken configuration: each mistake gets one sentence with file, line and key, and the nearest known word."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from blobsync.base.errors import ConfigError
from blobsync.base.exit_codes import ExitCode
from blobsync.config.check import check_project
from blobsync.config.loader import load_cluster, load_workspace
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

AML = "aux_data/aml/aml.yaml"
ACCT = "aux_data/configs/acct.yaml"
ENTRY = "{azure_blob_config_file: aux_data/configs/acct.yaml, path: p/data}"
DATA = f"config_param:\n  data_folder: {ENTRY}\n"
MOUNT = f"blob_mount_info:\n  - {{blob_mount_point: /blob, azure_blob_config_file: {ACCT}}}\n"


@pytest.fixture
def project(tmp_path: Path) -> ProjectFiles:
    return ProjectFiles(tmp_path)


def refusal(project: ProjectFiles) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_cluster(project.root, environ=NO_ENVIRON)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value


# The text of the file, and what is said of it behind the file's name; first those below an entry, in line 3.
_BELOW = {
    "wrong type": ("gpu_per_node: four", "gpu_per_node: must be a whole number, not a text"),
    "a list where one word belongs": ("experiment_name: [a]", "experiment_name: must be a text, not a list"),
    "no boolean": ("multi_process: sometimes", "multi_process: must be true or false, not a text"),
    "a negative number": ("num_gpu: -1", "num_gpu: must not be negative"),
    "no GPU per node": ("gpu_per_node: 0\nplatform: itp", "gpu_per_node: must be at least 1"),
    "no node": ("nodes: 0", "nodes: must be at least 1"),
    "no process": ("process_count_per_node: 0", "process_count_per_node: must be at least 1"),
    "no size": ("max_file_size: big", "max_file_size: must be a size such as 50 MB or a number of bytes, not a text"),
    "env as a list": ("env: [A=1]", "env: must be a mapping of names to texts, not a list"),
    "an unset variable": (
        "env: {A: 'exp_${BLOBSYNC_NOBODY_SET_THIS}'}",
        "env.A: the environment variable BLOBSYNC_NOBODY_SET_THIS is not set",
    ),
    "a variable where none may stand": (
        "experiment_name: exp_${BLOBSYNC_X}",
        "experiment_name: must not contain ${BLOBSYNC_X}: variables are expanded in credentials and in env only",
    ),
    "not YAML": (
        "a: b: c",
        "is not valid YAML: a second ':' on the line (put the value in quotes), or wrong indentation",
    ),
}
_ALONE = {
    "a nested value of the wrong type": (
        DATA + "docker:\n  image:\n    name: x\n",
        "4: docker.image: must be a text, not a mapping",
    ),
    "an item of the wrong type": (
        DATA + "elastic_num_gpu:\n  - 4\n  - many\n",
        "5: elastic_num_gpu.1: must be a whole number, not a text",
    ),
    "config_param as a list": (
        "config_param:\n  - data_folder\n",
        "1: config_param: must be a mapping of folder entries, not a list",
    ),
    "an account file that is not there": (
        "config_param:\n  data_folder:\n    path: p\n    azure_blob_config_file: aux_data/configs/acc.yaml\n",
        "4: config_param.data_folder.azure_blob_config_file: names aux_data/configs/acc.yaml, which does not exist",
    ),
    "a path under no mount point": (
        f"{MOUNT}config_param:\n  data_folder: /other/input/data\n",
        "4: config_param.data_folder: /other/input/data is not below any blob_mount_point (/blob)",
    ),
    "a path of Philly's HDFS": (
        f"{MOUNT}config_param:\n  data_folder: /hdfs/input/data\n",
        "4: config_param.data_folder: /hdfs/input/data was on an HDFS, which is gone",
    ),
    "a mount without an account": (
        "blob_mount_info:\n  - blob_mount_point: /blob\nconfig_param:\n  data_folder: /blob/x\n",
        "2: blob_mount_info.0: needs azure_blob_config_file beside it",
    ),
}
_ENTRIES = {
    "no account": (
        "data_folder: some/path",
        "data_folder: needs an azure_blob_config_file, here or at the top of the file",
    ),
    "no path": (f"data_folder:\n    azure_blob_config_file: {ACCT}", "data_folder: has no path"),
    "empty": ("data_folder:", "data_folder: is empty: it needs a path"),
    "a path that leaves its folder": (
        f"data_folder: {{azure_blob_config_file: {ACCT}, path: a/../b}}",
        "data_folder.path: 'a/../b' contains an empty part, '.' or '..': write the plain path",
    ),
    "outside": (f"../data_folder: {ENTRY}", "../data_folder: names a folder outside the project"),
    "no name": (f"_folder: {ENTRY}", "_folder: needs a folder name before _folder, such as data_folder"),
    "a file share without a name": (
        f"data_folder: {{azure_blob_config_file: {ACCT}, path: p, storage_type: file}}",
        "data_folder: storage_type file needs a file_share",
    ),
    "a code path that is the container": (
        f"code_path: {{azure_blob_config_file: {ACCT}, path: /}}",
        "code_path: needs a path below the container, such as code/project.zip",
    ),
}
CLUSTER_MISTAKES = {
    **{name: (f"{DATA}{text}\n", f"{AML}:3: {said}") for name, (text, said) in _BELOW.items()},
    **{name: (text, f"{AML}:{said}") for name, (text, said) in _ALONE.items()},
    **{
        f"an entry: {name}": (f"config_param:\n  {text}\n", f"{AML}:2: config_param.{said}")
        for name, (text, said) in _ENTRIES.items()
    },
    "two entries for one folder": (
        f"{DATA}  ./data_folder: {ENTRY}\n",
        f"{AML}:3: config_param../data_folder: duplicate entry for the folder data",
    ),
}


@pytest.mark.parametrize(("text", "message"), CLUSTER_MISTAKES.values(), ids=CLUSTER_MISTAKES.keys())
def test_mistakes_in_a_cluster_file(project: ProjectFiles, text: str, message: str) -> None:
    project.cluster(text)
    assert str(refusal(project)) == message


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        (
            "platform: slrum",
            f"{AML}:3: platform: 'slrum' is not one of local, slurm, aml, itp, singularity, kubernetes",
            "did you mean 'slurm'?",
        ),
        ("engine: fast", f"{AML}:3: engine: 'fast' is not one of auto, azcopy, direct, relay", None),
        (
            "engine: azcopi",
            f"{AML}:3: engine: 'azcopi' is not one of auto, azcopy, direct, relay",
            "did you mean 'azcopy'?",
        ),
        ("relay: always", f"{AML}:3: relay: 'always' is not one of ask, auto", None),
        (
            "env: {A: '${BLOBSYNC_B}'}",
            f"{AML}:3: env.A: the environment variable BLOBSYNC_B is not set",
            "set it first, for example: export BLOBSYNC_B=...",
        ),
        (
            "env: {A: '${B}'}",
            (f"{AML}:3: env.A: must not use the environment variable B: a project file may use allowed variables only"),
            (
                "if you trust this project with it: export BLOBSYNC_ALLOWED_VARIABLES=B, "
                "or list it under allowed_variables in your own configuration file"
            ),
        ),
    ],
)
def test_mistakes_come_with_a_hint(project: ProjectFiles, line: str, message: str, hint: str | None) -> None:
    project.cluster(DATA + line + "\n")
    error = refusal(project)
    assert (str(error), error.hint) == (message, hint)


def test_a_missing_key_of_an_account_names_what_may_be_meant_for_it(project: ProjectFiles) -> None:
    project.cluster(DATA)
    project.write(ACCT, "account_name: acct\ncontainer: cont\n")
    error = refusal(project)
    assert str(error) == f"{ACCT}: container_name: is missing"
    assert error.hint == f"{ACCT}:2 has 'container', which is no key: write container_name"


BASE = "account_name: acct\ncontainer_name: cont\n"
_ACCOUNTS = {
    "no account": ("container_name: cont", " account_name: is missing"),
    "no container": ("account_name: acct", " container_name: is missing"),
    "an account that is a URL": (
        "account_name: acct.blob.core.windows.net\ncontainer_name: cont",
        (
            "1: account_name: 'ac...' (26 characters) is not a valid storage account name: "
            "3 to 24 lowercase letters and digits"
        ),
    ),
    "a container with capitals": (
        "account_name: acct\ncontainer_name: My_Data",
        (
            "2: container_name: 'My...' (7 characters) is not a valid container name: "
            "3 to 63 lowercase letters, digits and single hyphens"
        ),
    ),
    "our own placeholder": (
        "account_name: <your storage account>\ncontainer_name: cont",
        "1: account_name: still has the example's placeholder: fill in your own",
    ),
}
# Line 3 of an account file.
_IN_ACCOUNTS = {
    "a key cut short": ("account_key: abcde", "is not base64: copy the whole key, including the = signs at the end"),
    "a SAS that is none": ("sas_token: https://example.org", "is not a SAS token: no sig= parameter"),
    "the example's placeholder": ("account_key: xxxx", "still has the example's placeholder: fill in your own"),
    "an endpoint that is no URL": (
        "blob_endpoint: acct.blob.core.windows.net",
        "is not a URL: expected https://<account>.blob.core.windows.net",
    ),
    "a SAS in the endpoint": (
        "blob_endpoint: https://acct.blob.core.windows.net/?sig=SENTINEL",
        "must be the plain URL; put a SAS in sas_token",
    ),
    "localhost": (
        "blob_endpoint: http://localhost:10000/acct",
        "azcopy does not support 'localhost' here: use 127.0.0.1",
    ),
    "an emulator without its account": (
        "blob_endpoint: http://127.0.0.1:10000",
        "must end with the account name after an IP address: http://127.0.0.1:10000/acct",
    ),
    "no credential": ("auth: key", "is 'key', but there is no account_key, here or in your logins"),
    "an unknown credential": ("auth: token", "'to...' (5 characters) is not one of sas, key, identity"),
    "an unset variable": (
        "account_key: ${AZURE_STORAGE_KEY}",
        "the environment variable AZURE_STORAGE_KEY is not set",
    ),
    "a key that is a list": ("account_key: [a]", "must be a text, not a list"),
}
ACCOUNT_MISTAKES = {
    **{name: (f"{text}\n", f"{ACCT}:{said}") for name, (text, said) in _ACCOUNTS.items()},
    **{
        name: (f"{BASE}{text}\n", f"{ACCT}:3: {text.partition(':')[0]}: {said}")
        for name, (text, said) in _IN_ACCOUNTS.items()
    },
}


@pytest.mark.parametrize(("text", "message"), ACCOUNT_MISTAKES.values(), ids=ACCOUNT_MISTAKES.keys())
def test_mistakes_in_an_account_file(project: ProjectFiles, text: str, message: str) -> None:
    project.account("acct", text)
    project.cluster(DATA)
    error = refusal(project)
    assert str(error) == message
    assert "SENTINEL" not in repr(error)


# As long as the keys of Batch and Cosmos; its form alone does not say what it is.
SHORT_KEY = base64.b64encode(b"a key of thirty-two random bytes").decode()


@pytest.mark.parametrize(
    "text",
    [
        f"account_name: acct\ncontainer_name: {SHORT_KEY}\n",
        f"account_name: {SHORT_KEY}\ncontainer_name: cont\n",
        f"account_name: {SHORT_KEY}\ncontainer_name: cont\nblob_endpoint: http://127.0.0.1:10000/acct\n",
        f"account_name: {SHORT_KEY}\ncontainer_name: cont\nblob_endpoint: https://blobs.example\n",
        BASE + f"auth: {SHORT_KEY}\n",
        BASE + f"blob_endpoint: {SHORT_KEY}\n",
        BASE + f"blob_endpoint: https://{SHORT_KEY}\n",
        BASE + f"sas_token: {SHORT_KEY}\n",
        BASE + f"{SHORT_KEY}: account_key\nauth: none\n",
    ],
)
def test_a_key_in_a_wrong_line_of_an_account_file_is_not_quoted(project: ProjectFiles, text: str) -> None:
    project.account("acct", text)
    project.cluster(DATA)
    checked = check_project(project.root, environ=NO_ENVIRON)
    told = [str(each) for file in checked for each in (*file.problems, *file.warnings)]
    told += [str(problem.hint) for file in checked for problem in file.problems]
    assert any(f"{ACCT}:" in each for each in told)
    assert SHORT_KEY[3:] not in "\n".join(told)
    assert SHORT_KEY[3:] not in repr(refusal(project))


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("mutli_process: true", f"{AML}:3: mutli_process: unknown key, ignored; did you mean 'multi_process'?"),
        ("docker: {imgae: x}", f"{AML}:3: docker.imgae: unknown key, ignored; did you mean 'image'?"),
        ("quux: 1", f"{AML}:3: quux: unknown key, ignored"),
        ("slurm: {partiton: x}", f"{AML}:3: slurm.partiton: unknown key, ignored; did you mean 'partition'?"),
    ],
)
def test_unknown_keys_warn_with_the_nearest(project: ProjectFiles, line: str, warning: str) -> None:
    project.cluster(DATA + line + "\n")
    assert load_cluster(project.root, environ=NO_ENVIRON).warnings == (warning,)


def test_a_misspelt_entry_warns(project: ProjectFiles) -> None:
    project.cluster(DATA + f"  output_foldr: {ENTRY}\n")
    assert load_cluster(project.root, environ=NO_ENVIRON).warnings == (
        f"{AML}:3: config_param.output_foldr: unknown key, ignored; did you mean 'output_folder'?",
    )


def test_an_unknown_key_of_an_account_warns_once_for_two_entries(project: ProjectFiles) -> None:
    project.account("acct", BASE + "accout_key: a2V5\n")
    project.cluster(DATA + f"  output_folder: {ENTRY}\n")
    assert load_cluster(project.root, environ=NO_ENVIRON).warnings == (
        f"{ACCT}:3: accout_key: unknown key, ignored; did you mean 'account_key'?",
    )


def test_a_key_that_others_can_read_warns(project: ProjectFiles) -> None:
    (project.root / ACCT).chmod(0o644)
    project.cluster(DATA)
    assert load_cluster(project.root, environ=NO_ENVIRON).warnings == (
        f"{ACCT}: holds account_key and is readable by other users (mode 644); run: chmod 600 {ACCT}",
    )


def test_a_password_that_others_can_read_warns(project: ProjectFiles) -> None:
    project.cluster(DATA + "docker: {image: i, username: me, password: pw-of-the-registry}\n").chmod(0o640)
    assert load_cluster(project.root, environ=NO_ENVIRON).warnings == (
        f"{AML}: holds docker.password and is readable by other users (mode 640); run: chmod 600 {AML}",
    )


def test_a_key_from_the_environment_needs_no_permissions(project: ProjectFiles) -> None:
    project.account("acct", BASE + "account_key: ${BLOBSYNC_KEY}\n").chmod(0o644)
    project.cluster(DATA)
    assert load_cluster(project.root, environ={"BLOBSYNC_KEY": "a2V5"}).warnings == ()


def test_more_mistakes_are_counted(project: ProjectFiles) -> None:
    project.cluster(DATA + "gpu_per_node: four\nnum_gpu: -1\nmulti_process: 7\n")
    assert refusal(project).hint == "2 more: blobsync config check"


def test_a_missing_workspace_is_named(project: ProjectFiles) -> None:
    project.cluster(DATA + "compute_target: x\naml_config: aux_data/aml/other.json\n")
    with pytest.raises(ConfigError) as caught:
        load_workspace(load_cluster(project.root, environ=NO_ENVIRON), environ=NO_ENVIRON)
    assert str(caught.value) == f"{AML}: aml_config: names aux_data/aml/other.json, which does not exist"


def test_an_unfinished_workspace_is_refused(project: ProjectFiles) -> None:
    project.cluster(DATA)
    project.write("aux_data/aml/config.json", '{\n  "subscription_id": "xxxx",\n  "resource_group": "g"\n}\n')
    with pytest.raises(ConfigError) as caught:
        load_workspace(load_cluster(project.root, environ=NO_ENVIRON), environ=NO_ENVIRON)
    assert str(caught.value) == (
        "aux_data/aml/config.json:2: subscription_id: still has the example's placeholder: fill in your own"
    )
    assert caught.value.hint == "1 more: blobsync config check"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"A=B": x', "'A=B' cannot be the name"),
        ('"": x', "'' cannot be the name"),
        ('"A\\0B": x', r"'A\x00B' cannot be the name"),
        ('"A\\nB": x', r"'A\nB' cannot be the name"),
        ('A: "x\\0y"', "contains a NUL character"),
    ],
)
def test_a_variable_that_no_system_takes_is_refused(project: ProjectFiles, line: str, said: str) -> None:
    project.cluster(f"env:\n  {line}\n")
    assert said in refusal(project).message


@pytest.mark.parametrize("sas", ["a=b c&sig=abc%3D", "sr=c &sig=abc", "sig=ab\\nX-Evil: 1", "sig=a\\tb", "sig=a\\x7fb"])
def test_a_sas_with_a_blank_is_refused_unquoted(project: ProjectFiles, sas: str) -> None:
    project.cluster(DATA)
    project.account("acct", BASE + f'sas_token: "{sas}"\n')
    said = str(refusal(project))
    assert "sas_token: is not a SAS token: it has a blank or a control character in it" in said
    assert "sig=a" not in said
