"""Cluster files in all their forms, and their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from blobsync.base.errors import ConfigError, ConfigNotFoundError, UnknownClusterError
from blobsync.config.loader import cluster_names, load_cluster, load_workspace, parse_overrides
from blobsync.config.model import Cluster
from blobsync.config.project_root import find_project
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

# The keys and values of the example in ACT's README, other names, without its comments.
ACT_EXAMPLE = r"""
azure_blob_config_file: null
datastore_name: null
aml_config: aux_data/aml/config.json
config_param:
   code_path:
       azure_blob_config_file: ./aux_data/configs/acct.yaml
       path: path/to/code.zip
   data_folder:
       azure_blob_config_file: ./aux_data/configs/acct.yaml
       path: path/to/data
   output_folder:
       azure_blob_config_file: ./aux_data/configs/acct.yaml
       path: path/to/output
use_custom_docker: true
compute_target: NC24RSV3
aks_compute: false
docker:
    image: someone/setup:py36pt16
experiment_name: experiment_name
use_cli_auth: True
multi_process: True
gpu_per_node: 4
env:
   NCCL_IB_DISABLE: '0'
zip_options:
    - '-x'
    - '\*src/py-faster-rcnn/\*'
    - '-x'
    - '\*src/CMC/\*'
"""

ENTRY = "{azure_blob_config_file: aux_data/configs/acct.yaml, path: p/data}"
DATA = f"config_param:\n  data_folder: {ENTRY}\n"


@pytest.fixture
def project(tmp_path: Path) -> ProjectFiles:
    return ProjectFiles(tmp_path)


def load(
    project: ProjectFiles,
    overrides: str | None = None,
    environ: Mapping[str, str] = NO_ENVIRON,
    name: str | None = None,
) -> Cluster:
    merged: Mapping[str, Any] | None = parse_overrides(overrides) if overrides else None
    return load_cluster(project.root, name, overrides=merged, environ=environ)


def places(cluster: Cluster) -> dict[str, str]:
    return {entry.prefix: str(entry.remote) for entry in cluster.folders}


def test_the_act_example_loads_with_every_key_in_its_meaning(project: ProjectFiles) -> None:
    project.cluster(ACT_EXAMPLE)
    cluster = load(project)
    assert cluster.warnings == ()
    assert (cluster.name, cluster.file, cluster.platform) == ("aml", "aux_data/aml/aml.yaml", "aml")
    assert places(cluster) == {
        "data": "https://acct.blob.core.windows.net/cont/path/to/data",
        "output": "https://acct.blob.core.windows.net/cont/path/to/output",
    }
    assert cluster.code is not None
    assert str(cluster.code.remote) == "https://acct.blob.core.windows.net/cont/path/to/code.zip"
    assert (cluster.compute_target, cluster.experiment_name) == ("NC24RSV3", "experiment_name")
    assert (cluster.multi_process, cluster.gpu_per_node, cluster.use_custom_docker) == (True, 4, True)
    assert cluster.docker.reference == "someone/setup:py36pt16"
    assert cluster.env == {"NCCL_IB_DISABLE": "0"}
    assert cluster.zip_options == ("-x", r"\*src/py-faster-rcnn/\*", "-x", r"\*src/CMC/\*")
    assert cluster.flag("use_cli_auth") is True
    assert cluster.text("datastore_name") is None


def test_the_act_workspace_file_loads(project: ProjectFiles) -> None:
    project.cluster(ACT_EXAMPLE)
    project.write(
        "aux_data/aml/config.json", '{\n"subscription_id": "s-1",\n"resource_group": "g",\n"workspace_name": "w"\n}'
    )
    workspace = load_workspace(load(project), environ=NO_ENVIRON)
    assert (workspace.subscription_id, workspace.resource_group, workspace.workspace_name) == ("s-1", "g", "w")
    assert workspace.management_endpoint == "https://management.azure.com"


def test_a_workspace_can_stand_in_the_cluster_file(project: ProjectFiles) -> None:
    project.cluster(DATA + "aml_config: {subscription_id: s, resource_group: g, workspace_name: w}\n")
    assert load_workspace(load(project), environ=NO_ENVIRON).file == "aux_data/aml/aml.yaml"


def test_a_bare_path_uses_the_account_file_and_datastore_at_the_top(project: ProjectFiles) -> None:
    project.cluster("""
        azure_blob_config_file: aux_data/configs/acct.yaml
        datastore_name: mine
        config_param:
          model_folder: /some/path/
          code_path: code.zip
        """)
    cluster = load(project)
    assert places(cluster) == {"model": "https://acct.blob.core.windows.net/cont/some/path"}
    assert cluster.folders[0].datastore_name == "mine"
    assert cluster.code is not None
    assert cluster.code.path == "code.zip"


def test_philly_files_use_the_longest_mount_point(project: ProjectFiles) -> None:
    project.account("other", "account_name: other\ncontainer_name: cont\n")
    project.cluster("""
        vc: input
        cluster: wu1
        user_name: me
        password: null
        blob_mount_info:
          - blob_mount_point: /blob
            azure_blob_config_file: aux_data/configs/acct.yaml
            blob_fuse_options: ['-o', 'attr_timeout=240']
          - blob_mount_point: /blob/shared
            azure_blob_config_file: aux_data/configs/other.yaml
        multi_process: true
        config_param:
          code_path: /blob/me/code.zip
          data_folder: /blob/shared/data
          output_folder: /blob/shared2/out
          all_folder: /blob
        docker: {image: philly/env, tag: 3.10}
        """)
    cluster = load(project)
    assert cluster.warnings == ()
    assert places(cluster) == {
        "data": "https://other.blob.core.windows.net/cont/data",
        "output": "https://acct.blob.core.windows.net/cont/shared2/out",
        "all": "https://acct.blob.core.windows.net/cont",
    }
    # Those of the mount point over each entry, which mounts on nodes get.
    options = {entry.prefix: entry.blob_fuse_options for entry in cluster.folders}
    assert options == {"data": (), "output": ("-o", "attr_timeout=240"), "all": ("-o", "attr_timeout=240")}
    assert cluster.docker.reference == "philly/env:3.10"
    assert cluster.platform == "local"


def test_philly_files_with_one_mount_point(project: ProjectFiles) -> None:
    project.cluster("""
        blob_mount_point: /blob/
        azure_blob_config_file: aux_data/configs/acct.yaml
        config_param: {data_folder: /blob/me/data}
        """)
    assert places(load(project)) == {"data": "https://acct.blob.core.windows.net/cont/me/data"}


def test_nested_prefixes_are_entries_of_their_own(project: ProjectFiles) -> None:
    project.cluster(f"config_param:\n  data_folder: {ENTRY}\n  data/coco_folder: {ENTRY}\n  ./raw/_folder: {ENTRY}\n")
    assert load(project).prefixes == ("data", "data/coco", "raw")


@pytest.mark.parametrize(
    ("extra", "platform"),
    [
        ("", "local"),
        ("compute_target: x\n", "local"),
        ("compute_target: x\naml_config: aux_data/aml/config.json\n", "aml"),
        ("compute_target: x\naml_config: a.json\nplatform: slurm\n", "slurm"),
        ("aks_compute: true\n", "itp"),
        ("platform: aml\naks_compute: true\n", "itp"),
    ],
)
def test_the_platform_follows_acts_rules(project: ProjectFiles, extra: str, platform: str) -> None:
    project.cluster(DATA + extra)
    assert load(project).platform == platform


def test_variables_stand_in_credentials_and_in_env(project: ProjectFiles) -> None:
    project.account("acct", "account_name: acct\ncontainer_name: cont\naccount_key: ${AZURE_STORAGE_KEY}\n")
    project.cluster("""
        azure_blob_config_file: aux_data/configs/acct.yaml
        config_param: {data_folder: 'home/$${WHO}/data'}
        env: {A: '$${WHO} and ${WHO}', B: '${BLOBSYNC_B}'}
        """)
    environ = {"WHO": "acct", "BLOBSYNC_B": "b", "AZURE_STORAGE_KEY": "c2VjcmV0", "BLOBSYNC_ALLOWED_VARIABLES": "WHO"}
    cluster = load(project, environ=environ)
    assert cluster.folders[0].path == "home/${WHO}/data"
    assert cluster.env == {"A": "${WHO} and acct", "B": "b"}
    account = cluster.folders[0].account
    assert account.account_key is not None
    assert account.account_key.reveal() == "c2VjcmV0"
    assert account.from_outside == {"key"}


def test_a_literal_credential_is_not_of_the_environment(project: ProjectFiles) -> None:
    project.account("acct", "account_name: acct\ncontainer_name: cont\naccount_key: c2VjcmV0\n")
    project.cluster("azure_blob_config_file: aux_data/configs/acct.yaml\nconfig_param: {data_folder: p}\n")
    assert load(project).folders[0].account.from_outside == frozenset()


def test_overrides_are_merged_deeply(project: ProjectFiles) -> None:
    project.cluster(ACT_EXAMPLE)
    cluster = load(project, "{env: {A: 1}, docker$image: other, config_param: {data_folder: {path: elsewhere}}}")
    assert cluster.env == {"NCCL_IB_DISABLE": "0", "A": "1"}
    assert cluster.docker.image == "other"
    assert places(cluster)["data"].endswith("/cont/elsewhere")
    assert places(cluster)["output"].endswith("/cont/path/to/output")


def test_an_override_replaces_lists_and_texts(project: ProjectFiles) -> None:
    project.cluster(ACT_EXAMPLE)
    cluster = load(project, "{zip_options: [-x, a], config_param: {data_folder: {include: [a]}}, num_gpu: 16}")
    assert cluster.zip_options == ("-x", "a")
    assert cluster.num_gpu == 16


def test_a_mistake_in_an_override_names_p(project: ProjectFiles) -> None:
    project.cluster(DATA)
    with pytest.raises(ConfigError) as caught:
        load(project, "{gpu_per_node: many}")
    assert str(caught.value) == "-p: gpu_per_node: must be a whole number, not a text"


def test_overrides_must_be_yaml() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_overrides("gpu_per_node=8")
    assert str(caught.value) == "-p: is not a mapping of keys to values"
    assert caught.value.hint == "-p takes YAML, for example: -p '{gpu_per_node: 8}'"


def test_the_project_is_found_from_any_folder_below(project: ProjectFiles) -> None:
    deep = project.root / "src" / "deep"
    deep.mkdir(parents=True)
    assert find_project(deep) == project.root
    assert find_project(deep / ".." / "..") == project.root


def test_no_project_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigNotFoundError) as caught:
        find_project(tmp_path)
    assert str(caught.value) == f"{tmp_path} is in no project: neither it nor a folder above it holds aux_data/"
    assert caught.value.hint == "cd into your project, or create one here: blobsync config new"


def test_clusters_are_chosen_by_name(project: ProjectFiles) -> None:
    for name in ("aml", "eu", "we3v32"):
        project.cluster(DATA, name)
    project.write("aux_data/aml/config.json", "{}")
    assert cluster_names(project.root) == ("aml", "eu", "we3v32")
    assert load(project, name="eu").name == "eu"
    assert load(project).name == "aml"


def test_the_variable_chooses_where_no_name_does(project: ProjectFiles) -> None:
    project.cluster(DATA, "eu")
    elsewhere = project.write("elsewhere/special.yaml", DATA)
    assert load(project, environ={"AML_CONFIG_PATH": str(elsewhere)}).name == "special"
    assert load(project, environ={"AML_CONFIG_PATH": "elsewhere/special.yaml"}).file == "elsewhere/special.yaml"
    assert load(project, environ={"AML_CONFIG_PATH": str(elsewhere)}, name="eu").name == "eu"


def test_outside_of_projects_the_variable_names_one(
    project: ProjectFiles, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = project.cluster(DATA, "eu")
    away = tmp_path_factory.mktemp("away")
    assert find_project(away, {"AML_CONFIG_PATH": str(file)}) == project.root
    for elsewhere, said in (
        (str(project.write("elsewhere/special.yaml", DATA)), "which is in no project's aux_data/aml/"),
        ("aux_data/aml/eu.yaml", "which does not exist"),
        (f"{file}.gone", "which does not exist"),
        (str(file.parent), "names the folder"),
    ):
        with pytest.raises(ConfigNotFoundError, match=said):
            find_project(away, {"AML_CONFIG_PATH": elsewhere})
    other = away / "other"
    (other / "aux_data").mkdir(parents=True)
    assert find_project(other, {"AML_CONFIG_PATH": str(file)}) == other


def test_a_variable_that_leads_nowhere_is_refused(project: ProjectFiles) -> None:
    with pytest.raises(ConfigNotFoundError, match=r"names the folder aux_data/aml, not a cluster file") as folder:
        load(project, environ={"AML_CONFIG_PATH": "aux_data/aml"})
    assert folder.value.hint == "name the file: export AML_CONFIG_PATH=aux_data/aml/aml.yaml"
    with pytest.raises(ConfigNotFoundError, match=r"^AML_CONFIG_PATH names gone\.yaml, which does not exist$"):
        load(project, environ={"AML_CONFIG_PATH": "gone.yaml"})


def test_an_unknown_cluster_is_refused_with_the_nearest(project: ProjectFiles) -> None:
    project.cluster(DATA, "we3v32")
    with pytest.raises(UnknownClusterError) as caught:
        load(project, name="we3v3")
    assert str(caught.value) == "no cluster 'we3v3': there is no aux_data/aml/we3v3.yaml"
    assert caught.value.hint == "did you mean 'we3v32'?"


def test_no_default_cluster_lists_the_others(project: ProjectFiles) -> None:
    project.cluster(DATA, "eu")
    with pytest.raises(ConfigNotFoundError) as caught:
        load(project)
    assert str(caught.value) == "aux_data/aml/aml.yaml: no such file"
    assert caught.value.hint == "choose one with -c; available: eu"


def test_account_files_outside_the_project_are_found(project: ProjectFiles, tmp_path: Path) -> None:
    home = tmp_path / "home"
    ProjectFiles(home)
    project.cluster("config_param:\n  data_folder: {azure_blob_config_file: ~/aux_data/configs/acct.yaml, path: p}\n")
    cluster = load(project, environ={"HOME": str(home)})
    assert cluster.folders[0].account.account_name == "acct"


def test_entry_options_of_act_and_ours_are_kept(project: ProjectFiles) -> None:
    project.cluster("""
        azure_blob_config_file: aux_data/configs/acct.yaml
        config_param:
          data_folder: {path: p, mode: download, include: [a, b], blob_cache_timeout: 60}
          share_folder: {path: p, storage_type: file, file_share: s}
          code_path: {path: c.zip, submit_with_url: true}
        """)
    cluster = load(project)
    data, share = cluster.folders
    assert (data.mode, data.include, data.blob_cache_timeout) == ("download", ("a", "b"), 60)
    assert (share.storage_type, share.file_share) == ("file", "s")
    assert cluster.code is not None


@pytest.mark.parametrize(
    ("written", "size"),
    [("1000", 1000), ("50 MB", 50_000_000), ("50MiB", 52_428_800), ("1.5g", 1_500_000_000), ("0", 0)],
)
def test_sizes(project: ProjectFiles, written: str, size: int) -> None:
    project.cluster(DATA + f"max_file_size: {written}\n")
    assert load(project).max_file_size == size


def test_settings_are_read_by_dotted_path(project: ProjectFiles) -> None:
    project.cluster(DATA + "slurm: {partition: gpu, time: 12:30:00, args: [--x], cpus_per_task: 4}\n")
    cluster = load(project)
    assert cluster.text("slurm.partition") == "gpu"
    assert cluster.text("slurm.time") == "12:30:00"
    assert cluster.texts("slurm.args") == ("--x",)
    assert cluster.number("slurm.cpus_per_task") == 4
    assert cluster.number("slurm.nothing", 7) == 7
    assert set(cluster.mapping("slurm")) == {"partition", "time", "args", "cpus_per_task"}
    assert cluster.mapping("nowhere") == {}


def test_no_value_shows_a_secret(project: ProjectFiles) -> None:
    project.account(
        "acct", "account_name: acct\ncontainer_name: cont\naccount_key: U0VOVElORUw=\nsas_token: '?sig=SENTINEL'\n"
    )
    project.cluster(DATA + "docker: {image: i, password: SENTINEL}\nenv: {TOKEN: SENTINEL}\npassword: SENTINEL\n")
    cluster = load(project)
    assert "SENTINEL" not in repr(cluster)
    assert "U0VOVElORUw" not in repr(cluster)
    assert "SENTINEL" not in repr({key: value for key, value in cluster.values.items() if key != "env"})


def test_an_empty_name_is_no_cluster(project: ProjectFiles) -> None:
    with pytest.raises(UnknownClusterError, match="no cluster ''"):
        load_cluster(project.root, "", environ={})


@pytest.mark.parametrize("platform", ["philly", "batchai"])
def test_a_platform_that_is_gone_is_in_no_transfers_way(project: ProjectFiles, platform: str) -> None:
    entry = "{azure_blob_config_file: aux_data/configs/acct.yaml, path: p}"
    project.cluster(f"platform: {platform}\nconfig_param: {{data_folder: {entry}}}\n")
    cluster = load(project)
    assert (cluster.platform, cluster.platform_given) == ("local", False)
