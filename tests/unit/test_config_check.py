"""``config check`` and ``config new``."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from blobsync.base.redaction import Secret
from blobsync.config.check import CheckedFile, ClusterChoice, check_project
from blobsync.config.known_keys import (
    ACCOUNT,
    CLUSTER,
    DOCKER,
    FOLDER,
    GLOBAL_DISPATCH,
    LOCAL,
    MOUNT,
    RUNTIME,
    SLURM,
    WORKSPACE,
)
from blobsync.config.loader import load_cluster
from blobsync.config.scaffold import (
    EmulatorAccount,
    StorageAnswers,
    example_files,
    first_files,
    follow_emulator,
    ignore_data,
    leaves_out_accounts,
    new_project,
    write_files,
)
from blobsync.local.ignore_patterns import bad_patterns
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

ACCT = "aux_data/configs/acct.yaml"
DATA = f"config_param:\n  data_folder: {{azure_blob_config_file: {ACCT}, path: p/data}}\n"


def check(root: Path) -> dict[str, CheckedFile]:
    return {item.file: item for item in check_project(root, environ=NO_ENVIRON)}


def test_the_python_of_nodes_is_a_name_or_an_absolute_path(tmp_path: Path) -> None:
    project = ProjectFiles(tmp_path)
    project.cluster(DATA + "interpreter_path: ./evil.sh\nruntime: {python: 'python3; id'}\n")
    project.cluster(DATA + "interpreter_path: /opt/py/bin/python3.12\nruntime: {python: python3.11}\n", "eu")
    found = check(tmp_path)
    said = "is neither a program name nor an absolute path"
    assert [str(problem) for problem in found["aux_data/aml/aml.yaml"].problems] == [
        f"aux_data/aml/aml.yaml:3: interpreter_path: './evil.sh' {said}",
        f"aux_data/aml/aml.yaml:4: runtime.python: 'python3; id' {said}",
    ]
    assert found["aux_data/aml/eu.yaml"].problems == ()


def test_all_problems_of_all_files_are_reported_once_each(tmp_path: Path) -> None:
    project = ProjectFiles(tmp_path)
    project.cluster(DATA + "gpu_per_node: four\nmulti_process: 7\n")
    project.cluster(DATA, "eu")
    project.account("acct", "account_name: acct\naccount_key: abcde\n")
    project.account("unused", "account_name: acct\ncontainer_name: A\n")
    project.write("aux_data/configs/multi_philly_vc.yaml", "clusters: [wu1, sc2]\n")
    found = check(tmp_path)
    assert {file: [str(problem) for problem in item.problems] for file, item in found.items()} == {
        "aux_data/aml/aml.yaml": [
            "aux_data/aml/aml.yaml:3: gpu_per_node: must be a whole number, not a text",
            "aux_data/aml/aml.yaml:4: multi_process: must be true or false, not a number",
        ],
        "aux_data/aml/eu.yaml": [],
        "aux_data/configs/acct.yaml": [
            "aux_data/configs/acct.yaml: container_name: is missing",
            (
                "aux_data/configs/acct.yaml:2: account_key: is not base64: "
                "copy the whole key, including the = signs at the end"
            ),
        ],
        "aux_data/configs/unused.yaml": [
            (
                "aux_data/configs/unused.yaml:2: container_name: 'A...' (1 character) is not a valid container name: "
                "3 to 63 lowercase letters, digits and single hyphens"
            ),
        ],
    }


def test_a_sound_project_has_no_findings(tmp_path: Path) -> None:
    project = ProjectFiles(tmp_path)
    project.cluster(DATA)
    found = check(tmp_path)
    assert [(item.file, item.problems, item.warnings) for item in found.values()] == [
        ("aux_data/aml/aml.yaml", (), ()),
        ("aux_data/configs/acct.yaml", (), ()),
    ]
    assert found["aux_data/aml/aml.yaml"].cluster is not None


def test_the_file_of_the_variable_is_checked_as_well(tmp_path: Path) -> None:
    project = ProjectFiles(tmp_path)
    project.cluster(DATA)
    special = project.write("elsewhere/special.yaml", "gpu_per_node: x\n")
    found = {item.file: item for item in check_project(tmp_path, environ={"AML_CONFIG_PATH": str(special)})}
    assert [str(problem) for problem in found["elsewhere/special.yaml"].problems] == [
        "elsewhere/special.yaml:1: gpu_per_node: must be a whole number, not a text"
    ]
    gone = {item.file: item for item in check_project(tmp_path, environ={"AML_CONFIG_PATH": "gone.yaml"})}
    assert [str(problem) for problem in gone["AML_CONFIG_PATH"].problems] == [
        "AML_CONFIG_PATH names gone.yaml, which does not exist"
    ]
    twice = check_project(tmp_path, environ={"AML_CONFIG_PATH": str(tmp_path / "aux_data/aml/aml.yaml")})
    assert [item.file for item in twice] == ["aux_data/aml/aml.yaml", "aux_data/configs/acct.yaml"]


def test_the_workspace_of_an_azure_ml_cluster_is_checked(tmp_path: Path) -> None:
    project = ProjectFiles(tmp_path)
    project.cluster(DATA + "platform: aml\naml_config: aux_data/aml/config.json\n")
    project.write("aux_data/aml/config.json", '{"subscription_id": "s", "resource_group": "g", "workspace": "w"}')
    item = check(tmp_path)["aux_data/aml/config.json"]
    assert [str(problem) for problem in item.problems] == ["aux_data/aml/config.json: workspace_name: is missing"]
    assert item.warnings == (
        "aux_data/aml/config.json:1: workspace: unknown key, ignored; did you mean 'workspace_name'?",
    )


def test_warnings_are_in_the_order_of_the_lines(tmp_path: Path) -> None:
    project = ProjectFiles(tmp_path)
    project.cluster("with_log: true\nnum_gpuu: 2\nplatform: local\ninterpreter_path: python3\ndockerr: {}\n" + DATA)
    lines = [int(warning.split(":")[1]) for warning in check(tmp_path)["aux_data/aml/aml.yaml"].warnings]
    assert lines == [1, 2, 4, 5]


def test_patterns_that_init_or_a_transfer_would_refuse_are_mistakes(tmp_path: Path) -> None:
    project = ProjectFiles(tmp_path)
    project.account("acct", "account_name: acct\ncontainer_name: data\n")
    project.cluster(
        "ignore:\n- '*.tmp'\n- '['\nzip_options: [-x, '[']\n"
        f"config_param:\n  data_folder:\n    azure_blob_config_file: {ACCT}\n    path: p/data\n"
        "    ignore: [fine, 'a\\']\n"
    )
    checked = check_project(tmp_path, environ=NO_ENVIRON, further=bad_patterns)
    item = next(each for each in checked if each.file == "aux_data/aml/aml.yaml")
    assert item.cluster is None and [str(problem).partition("\n")[0] for problem in item.problems] == [
        "aux_data/aml/aml.yaml:3: ignore.1: bad pattern '[': '[' without a closing ']'",
        "aux_data/aml/aml.yaml:4: zip_options: bad pattern '[': '[' without a closing ']'",
        "aux_data/aml/aml.yaml:9: config_param.data_folder.ignore.1: bad pattern 'a\\': it ends with a backslash",
    ]
    choice = ClusterChoice(overrides={"ignore": ["x["], "zip_options": [], "config_param": {"data_folder$ignore": []}})
    checked = check_project(tmp_path, clusters=[choice], environ=NO_ENVIRON, further=bad_patterns)
    assert [problem.message for problem in checked[0].problems] == [
        "-p: ignore.0: bad pattern 'x[': '[' without a closing ']'"
    ]


@pytest.mark.parametrize("inline", [False, True])
def test_mistakes_of_the_workspace_are_told_beside_those_of_the_cluster_file(tmp_path: Path, inline: bool) -> None:
    project = ProjectFiles(tmp_path)
    names = '{"subscription_id": "<subscription>", "resource_group": "<group>", "workspace_name": "xxxx"}'
    place = "aux_data/aml/config.json"
    given = names if inline else place
    project.cluster(DATA + f"aml_config: {given}\ncompute_target: gpu\ngpu_per_node: four\nsource_directory: src\n")
    project.account("acct", "account_name: <account>\ncontainer_name: cont\n")
    project.write(place, names)
    found = check(tmp_path)
    file = found["aux_data/aml/aml.yaml" if inline else place]
    keys = {problem.key for problem in file.problems if "still has the example's placeholder" in str(problem)}
    assert keys == {"subscription_id", "resource_group", "workspace_name"}
    assert [problem.key for problem in found[ACCT].problems] == ["account_name"]
    wrong = found["aux_data/aml/aml.yaml"]
    assert "gpu_per_node" in {problem.key for problem in wrong.problems} and wrong.cluster is None
    assert [refusal.path for refusal in wrong.job_refusals] == [("source_directory",)]


def test_no_workspace_is_guessed_where_its_key_is_wrong(tmp_path: Path) -> None:
    ProjectFiles(tmp_path).cluster(DATA + "platform: aml\naml_config: 7\n")
    [problem] = check(tmp_path)["aux_data/aml/aml.yaml"].problems
    assert problem.key == "aml_config"


def test_a_workspace_file_that_is_absent_is_the_cluster_files_mistake(tmp_path: Path) -> None:
    ProjectFiles(tmp_path).cluster(DATA + "platform: aml\naml_config: aux_data/aml/no.json\n")
    found = check(tmp_path)
    assert "aux_data/aml/no.json" not in found
    assert [str(problem) for problem in found["aux_data/aml/aml.yaml"].problems] == [
        "aux_data/aml/aml.yaml: aml_config: names aux_data/aml/no.json, which does not exist"
    ]


def test_a_project_without_clusters_says_so(tmp_path: Path) -> None:
    ProjectFiles(tmp_path)
    problems = check(tmp_path)["aux_data/aml"].problems
    assert [str(problem) for problem in problems] == ["aux_data/aml/ contains no cluster file"]


def test_keys_that_git_would_take_warn(tmp_path: Path) -> None:
    project = ProjectFiles(tmp_path)
    project.cluster(DATA)
    (tmp_path / ".git").mkdir()
    warning = f"{ACCT}: .gitignore does not name aux_data/configs/, so a key in it could be committed"
    assert check(tmp_path)[ACCT].warnings == (warning,)
    project.write(".gitignore", "aux_data/configs/\n")
    assert check(tmp_path)[ACCT].warnings == ()


def test_new_files_for_the_emulator_work_at_once(tmp_path: Path) -> None:
    made = new_project(tmp_path, emulator=EmulatorAccount("http://127.0.0.1:4711/devstoreaccount1", Secret("a2V5")))
    assert made.written == ("aux_data/aml/aml.yaml", "aux_data/configs/storage.yaml", ".gitignore")
    assert not [problem for item in check(tmp_path).values() for problem in item.problems + item.warnings]
    cluster = load_cluster(tmp_path, environ=NO_ENVIRON)
    base = f"http://127.0.0.1:4711/devstoreaccount1/demo/{tmp_path.name}"
    assert str(cluster.folders[0].remote) == f"{base}/data", "each project has its own place in the one container"
    storage = tmp_path / "aux_data/configs/storage.yaml"
    assert stat.S_IMODE(storage.stat().st_mode) == 0o600
    storage.chmod(0o644)
    assert "chmod 600" in load_cluster(tmp_path, environ=NO_ENVIRON).warnings[0]


def test_a_second_cluster_for_the_emulator_has_files_and_a_place_of_its_own(tmp_path: Path) -> None:
    own = EmulatorAccount("http://127.0.0.1:4711/devstoreaccount1", Secret("a2V5"))
    new_project(tmp_path, emulator=own)
    made = new_project(tmp_path, emulator=own, cluster="eu")
    assert made.written == ("aux_data/aml/eu.yaml", "aux_data/configs/eu.yaml")
    first, second = (load_cluster(tmp_path, name, environ=NO_ENVIRON).folders[0].remote for name in ("aml", "eu"))
    assert (first.name, second.name) == (f"{tmp_path.name}/data", f"{tmp_path.name}-eu/data")


@pytest.mark.parametrize("name", ["my data: #1", "größe", "yes", "a\\b", "<mine>", "..."])
def test_a_folder_of_any_name_has_its_own_place_in_the_emulator(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    root.mkdir()
    new_project(root, emulator=EmulatorAccount("http://127.0.0.1:4711/devstoreaccount1", Secret("a2V5")))
    assert not [problem for item in check(root).values() for problem in item.problems + item.warnings]
    place = load_cluster(root, environ=NO_ENVIRON).folders[0].remote.name
    assert place == {"a\\b": "a_b/data", "<mine>": "_mine_/data", "...": "demo/data"}.get(name, f"{name}/data")


def test_the_emulators_new_port_is_written_into_files_with_its_key_alone(tmp_path: Path) -> None:
    own = EmulatorAccount("http://127.0.0.1:4711/devstoreaccount1", Secret("a2V5"))
    new_project(tmp_path, emulator=own)
    storage = tmp_path / "aux_data/configs/storage.yaml"
    before = storage.read_text()
    other = tmp_path / "aux_data/configs/other.yaml"
    other.write_text(before.replace("a2V5", "b3RoZXI="))
    moved = EmulatorAccount("http://127.0.0.1:4712/devstoreaccount1", own.key)
    names = ("aux_data/configs/other.yaml", "aux_data/configs/storage.yaml")
    assert follow_emulator(tmp_path, moved, names) == names[1:]
    assert storage.read_text() == before.replace(":4711/", ":4712/") and ":4711/" in other.read_text()
    assert stat.S_IMODE(storage.stat().st_mode) == 0o600
    assert follow_emulator(tmp_path, moved, names) == ()


def test_new_files_ask_for_what_only_the_user_knows(tmp_path: Path) -> None:
    new_project(tmp_path)
    assert [str(problem) for item in check(tmp_path).values() for problem in item.problems] == [
        "aux_data/aml/aml.yaml:7: config_param.code_path.path: still has the example's placeholder: fill in your own",
        (
            "aux_data/aml/aml.yaml:11: config_param.data_folder.path: "
            "still has the example's placeholder: fill in your own"
        ),
        (
            "aux_data/aml/aml.yaml:14: config_param.output_folder.path: "
            "still has the example's placeholder: fill in your own"
        ),
        "aux_data/configs/storage.yaml:3: account_name: still has the example's placeholder: fill in your own",
        "aux_data/configs/storage.yaml:4: container_name: still has the example's placeholder: fill in your own",
    ]


@pytest.mark.parametrize(
    ("outer", "key", "inner", "warned"),
    [
        ("p", "output", "p", ["data", "output"]),
        ("p", "output", "p/out", ["output"]),
        ("''", "output", "p", ["output"]),
        ("p", "data/output", "p/output", []),
        ("p", "output", "p2", []),
    ],
)
def test_blobs_that_two_entries_have_under_different_paths_are_named(
    tmp_path: Path, outer: str, key: str, inner: str, warned: list[str]
) -> None:
    """A mirror of one would delete those of the other."""
    entries = f"  data_folder: {outer}\n  {key}_folder: {inner}\n"
    ProjectFiles(tmp_path).cluster(f"azure_blob_config_file: aux_data/configs/acct.yaml\nconfig_param:\n{entries}")
    said = [text for each in check_project(tmp_path, environ=NO_ENVIRON) for text in each.warnings]
    named = [text.partition("config_param.")[2].partition("_folder")[0] for text in said if "--mirror" in text]
    assert named == warned


def test_new_never_changes_a_file_that_is_there(tmp_path: Path) -> None:
    project = ProjectFiles(tmp_path)
    project.cluster(DATA)
    # In whatever encoding.
    (tmp_path / ".gitignore").write_bytes(b"caf\xe9\n/data/")
    made = new_project(tmp_path)
    assert made.written == ("aux_data/configs/storage.yaml", ".gitignore")
    assert made.kept == ("aux_data/aml/aml.yaml",)
    assert (tmp_path / "aux_data/aml/aml.yaml").read_text() == DATA
    lines = (tmp_path / ".gitignore").read_bytes().splitlines()
    assert lines[:2] == [b"caf\xe9", b"/data/"]
    assert lines.count(b"/data/") == 1
    assert b"aux_data/configs/" in lines
    assert ".gitignore" in new_project(tmp_path).kept


def test_account_files_without_a_secret_stay_in_git(tmp_path: Path) -> None:
    """They are what a colleague's clone needs; the new file beside them that holds a key is kept out."""
    where = StorageAnswers("acct", "cont", "sas")
    write_files(tmp_path, first_files(where))
    ignore_data(tmp_path, where.folders, NO_ENVIRON)
    assert new_project(tmp_path).written == ()
    own = EmulatorAccount("http://127.0.0.1:4711/devstoreaccount1", Secret("a2V5"))
    new_project(tmp_path, emulator=own, cluster="eu")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for name, is_ignored in (("storage", False), ("eu", True)):
        asked = ["git", "check-ignore", "-q", f"aux_data/configs/{name}.yaml"]
        assert (subprocess.run(asked, cwd=tmp_path, check=False).returncode == 0) is is_ignored, name
    assert not leaves_out_accounts(tmp_path)
    # Beside a file with a key any other is kept out, and whoever adds one to git is told how.
    (tmp_path / ".gitignore").unlink()
    new_project(tmp_path)
    assert leaves_out_accounts(tmp_path)


def test_the_repository_carries_the_same_examples() -> None:
    root = Path(__file__).parents[2]
    for name, text, _ in example_files():
        assert (root / name).read_text() == text, f"{name} differs from what config new writes"


def test_the_reference_names_every_key() -> None:
    text = (Path(__file__).parents[2] / "docs/configuration.md").read_text()
    tables = (ACCOUNT, WORKSPACE, CLUSTER, FOLDER, DOCKER, MOUNT, GLOBAL_DISPATCH, SLURM, LOCAL, RUNTIME)
    missing = sorted({key for table in tables for key in table if f"`{key}`" not in text})
    assert not missing
