"""Philly's files: what each becomes on a platform, and the road to it from the words that its users type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.ancestors.convert import Conversion, convert_philly
from blobsync.ancestors.philly import philly_road
from blobsync.base.errors import ConfigError, UnknownClusterError, UsageError
from blobsync.config.known_keys import PLATFORMS
from blobsync.config.loader import load_cluster
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import CodeRef
from tests.unit.project_files import NO_ENVIRON, ProjectFiles
from tests.unit.test_ancestors import PHILLY

COMMON: Mapping[str, Any] = {**PHILLY, "isDebug": False}


@pytest.fixture
def project(tmp_path: Path) -> ProjectFiles:
    files = ProjectFiles(tmp_path)
    files.account("other", "account_name: other\ncontainer_name: box\naccount_key: b3RoZXI=\n")
    return files


def converted(project: ProjectFiles, platform: str, values: Mapping[str, Any] = COMMON) -> Conversion:
    path = project.write("aux_data/configs/philly_vc.yaml", yaml.safe_dump(dict(values), sort_keys=False))
    return convert_philly(project.root, path, "new", platform, NO_ENVIRON)


def modes(found: Conversion) -> dict[str, str]:
    entries = found.files[0].values["config_param"]
    return {name.removesuffix("_folder"): entry["mode"] for name, entry in entries.items() if name != "code_path"}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_folder_gets_a_mode_in_which_nothing_is_lost(project: ProjectFiles, platform: str) -> None:
    found = converted(project, platform)
    mounted = {"data": "ro_mount", "model": "mount", "output": "mount"}
    copied = {"data": "download", "model": "download", "output": "upload"}
    assert modes(found) == (copied if platform in ("local", "slurm") else mounted)
    for name, mode in modes(found).items():
        assert any(note.startswith(f"{name}_folder: mode {mode}: ") for note in found.notes)
    (file,) = found.files
    assert file.values["gpu_per_node"] == 4 and file.values["docker"] == {"image": "philly/env", "tag": "py37"}
    assert file.values["env"] == {"PHILLY_VC": "input", "PHILLY_USER": "me"}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_converted_file_is_one_that_submit_takes(project: ProjectFiles, platform: str) -> None:
    found = converted(project, platform)
    project.write(found.files[0].name, found.files[0].text)
    needed: Mapping[str, Any] = {"kubernetes": {"namespace": "n"}} if platform == "kubernetes" else {}
    cluster = load_cluster(project.root, "new", overrides=needed, environ=NO_ENVIRON)
    assert cluster.job_refusals == () and not [note for note in cluster.warnings if "unknown" in note]
    code = CodeRef("https://acct.blob.core.windows.net/cont", "me/code.zip", "")
    spec = describe(cluster, SubmitRequest(("true",)), "me_1_0badcafe", code)
    assert not [folder for folder in spec.folders if folder.mode == "link"]
    assert spec.gpus_per_node == 4


def test_what_is_left_out_is_named_with_its_line(project: ProjectFiles) -> None:
    found = converted(project, "slurm", {**PHILLY, "elastic_num_gpu": [4, 8]})
    lines = (project.root / "aux_data/configs/philly_vc.yaml").read_text().splitlines()
    told = {}
    for note in found.notes:
        place, _, rest = note.partition(": ")
        if "left out" in rest:
            told[rest.partition(": ")[0]] = lines[int(place.rpartition(":")[2]) - 1].split(":")[0].strip()
    assert told == {
        **{key: key for key in ("vc_type", "cluster", "password", "isDebug", "use_blob_as_input", "with_log")},
        "elastic_num_gpu": "elastic_num_gpu",
        "config_param.model_folder.blob_fuse_options": "model_folder",
        "config_param.output_folder.blob_fuse_options": "output_folder",
    }
    assert "secret-word" not in found.files[0].text + " ".join(found.notes)


def test_a_machine_of_philly_on_premises_had_eight_gpus(project: ProjectFiles) -> None:
    assert converted(project, "slurm", {**COMMON, "vc_type": "ap"}).files[0].values["gpu_per_node"] == 8
    assert converted(project, "slurm", {**COMMON, "gpu_per_node": 2}).files[0].values["gpu_per_node"] == 2


@pytest.mark.parametrize(
    "clusters", [["wu1", "sc2"], {"wu1": "philly_vc.yaml", "sc2": "aux_data/configs/other_vc.yaml"}]
)
def test_the_file_that_names_clusters_becomes_one_for_each(project: ProjectFiles, clusters: Any) -> None:
    project.write("aux_data/configs/philly_vc.yaml", yaml.safe_dump(dict(COMMON)))
    project.write("aux_data/configs/other_vc.yaml", yaml.safe_dump({**COMMON, "num_gpu": 8}))
    path = project.write(
        "aux_data/configs/multi_philly_vc.yaml", yaml.safe_dump({"clusters": clusters}, sort_keys=False)
    )
    found = convert_philly(project.root, path, None, "slurm", NO_ENVIRON)
    assert [file.name for file in found.files] == ["aux_data/aml/wu1.yaml", "aux_data/aml/sc2.yaml"]
    assert found.files[1].values["num_gpu"] == (4 if isinstance(clusters, list) else 8)
    assert found.command == ("blobsync", "-c", "wu1,sc2", "submit", "python", "train.py")
    assert not [note for note in found.notes if note.startswith("-p")]
    with pytest.raises(UsageError, match="names 2 clusters, wu1, sc2"):
        convert_philly(project.root, path, "one", "slurm", NO_ENVIRON)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("clusters: [wu1]\nvc: x\n", "multi.yaml:2: vc: is not a key of a file that names Philly's clusters"),
        ("clusters: wu1\n", "multi.yaml:1: clusters: must be a list of names, or a mapping of names to files"),
        ("clusters: []\n", "multi.yaml:1: clusters: must be a list"),
        ("clusters: {wu1: 3}\n", "multi.yaml:1: clusters: must be a list"),
        ("clusters: ['../x']\n", "cannot be the name of a cluster"),
    ],
)
def test_a_wrong_file_of_clusters_is_one_sentence(project: ProjectFiles, text: str, says: str) -> None:
    path = project.write("aux_data/configs/multi.yaml", text)
    with pytest.raises((ConfigError, UsageError)) as caught:
        convert_philly(project.root, path, None, "slurm", NO_ENVIRON)
    assert says in caught.value.message and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("file", "text", "road"),
    [
        ("wu1", yaml.safe_dump(dict(COMMON)), "blobsync convert philly aux_data/configs/wu1.yaml --name wu1"),
        ("multi_philly_vc", "clusters: [sc2, wu1]\n", "blobsync convert philly aux_data/configs/multi_philly_vc.yaml"),
        ("of all", "clusters: [wu1]\n", "blobsync convert philly 'aux_data/configs/of all.yaml'"),
    ],
)
def test_a_name_that_only_philly_knows_has_a_road(project: ProjectFiles, file: str, text: str, road: str) -> None:
    project.write(f"aux_data/configs/{file}.yaml", text)
    assert philly_road(project.root, "wu1") == f"{road} --platform slurm"
    assert philly_road(project.root, "acct") == ""
    with pytest.raises(UnknownClusterError) as caught:
        load_cluster(project.root, "wu1", environ=NO_ENVIRON)
    assert (caught.value.root, caught.value.name) == (project.root, "wu1")


def test_paths_of_hdfs_have_a_road(project: ProjectFiles) -> None:
    values = {**COMMON, "config_param": {**COMMON["config_param"], "data_folder": "/hdfs/input/me/data"}}
    with pytest.raises(ConfigError, match=r"config_param.data_folder: /hdfs/input/me/data was on an HDFS") as caught:
        converted(project, "slurm", values)
    assert caught.value.line and "/blob/input/me/data" in str(caught.value.hint)
    alone = {"vc": "input", "azure_blob_config_file": "aux_data/configs/acct.yaml"}
    with pytest.raises(ConfigError, match="was on an HDFS, which is gone"):
        converted(project, "slurm", {**alone, "config_param": {"data_folder": "/hdfs/input/me"}})
