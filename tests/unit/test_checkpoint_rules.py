"""The keys of checkpoints: what they may hold, where they are refused, and what jobs take along."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest

from blobsync.base.errors import ConfigError
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.config.known_keys import CHECKPOINT_KEYS
from blobsync.config.loader import load_cluster
from blobsync.config.model import Cluster
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.node_secrets import rights_needed
from blobsync.jobspec.spec import FolderLink, JobSpec
from tests.fakes.jobs import make_spec
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

ENTRY = "azure_blob_config_file: aux_data/configs/acct.yaml, path: p/out, mode: upload"


def load(tmp_path: Path, keys: str, *, entry: str = ENTRY, platform: str = "local") -> Cluster:
    ProjectFiles(tmp_path).cluster(f"platform: {platform}\nconfig_param:\n  output_folder: {{{entry}, {keys}}}\n")
    return load_cluster(tmp_path, environ=NO_ENVIRON)


def rule_of(tmp_path: Path, keys: str) -> CheckpointRule:
    (entry,) = load(tmp_path, keys).folders
    assert entry.checkpoints is not None
    return entry.checkpoints


def test_all_keys_make_a_rule(tmp_path: Path) -> None:
    assert tuple(each.name for each in fields(CheckpointRule))[1:] == CHECKPOINT_KEYS
    keys = (
        "checkpoints: 'run-*/checkpoint-*', complete: trainer_state.json, settle_seconds: 3, restore: 500,"
        " restore_from: me_1_0badcafe, keep_last: 2, keep_every: 1000, keep_best: 'trainer_state.json:best_metric:max',"
        " upload_cores: 2, cap_mbps: 400"
    )
    assert rule_of(tmp_path, keys) == CheckpointRule(
        "run-*/checkpoint-*",
        ("trainer_state.json",),
        3,
        "500",
        "me_1_0badcafe",
        2,
        1000,
        "trainer_state.json:best_metric:max",
        2,
        400,
    )
    assert rule_of(tmp_path, "checkpoints: '*.ckpt'") == CheckpointRule("*.ckpt")
    assert rule_of(tmp_path, "checkpoints: 'c-*', complete: [a.json, ../latest]").complete == ("a.json", "../latest")


@pytest.mark.parametrize(
    ("keys", "key", "said"),
    [
        ("checkpoints: /abs", "checkpoints", "no pattern"),
        ("checkpoints: a/../b", "checkpoints", "no pattern"),
        ("checkpoints: '**/c'", "checkpoints", "no pattern"),
        ("checkpoints: ''", "checkpoints", "no pattern"),
        ("checkpoints: [a]", "checkpoints", "must be a text"),
        ("checkpoints: c-*, complete: ../../x", "complete", "names no file"),
        ("checkpoints: c-*, complete: [still, a]", "complete", "cannot be combined"),
        ("checkpoints: c-*, restore: newest", "restore", "none of latest, best, own, none, and no step"),
        ("checkpoints: c-*, restore: -5", "restore", "no step"),
        ("checkpoints: c-*, restore: best", "restore", "needs keep_best"),
        ("checkpoints: c-*, restore_from: ../x", "restore_from", "id of a job"),
        ("checkpoints: c-*, keep_best: best_metric", "keep_best", "FILE:FIELD"),
        ("checkpoints: c-*, keep_best: 'a:b:most'", "keep_best", "FILE:FIELD"),
        ("checkpoints: c-*, keep_last: 0", "keep_last", "at least 1"),
        ("checkpoints: c-*, keep_every: 0", "keep_every", "at least 1"),
        ("checkpoints: c-*, upload_cores: 0", "upload_cores", "at least 1"),
        ("checkpoints: c-*, cap_mbps: 0", "cap_mbps", "at least 1"),
        ("checkpoints: c-*, keep_last: two", "keep_last", "must be a whole number"),
        ("keep_last: 2", "keep_last", "counts only with checkpoints: PATTERN"),
    ],
)
def test_what_a_key_cannot_hold_is_an_error_with_its_line(tmp_path: Path, keys: str, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, keys)
    assert caught.value.key == f"config_param.output_folder.{key}"
    assert caught.value.line and said in caught.value.message


def test_a_misspelt_key_gets_the_nearest(tmp_path: Path) -> None:
    (warning,) = load(tmp_path, "checkpoint: 'c-*'").warnings
    assert "checkpoints" in warning


def test_an_entry_at_the_containers_root_has_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs an entry with a path"):
        load(tmp_path, "checkpoints: c-*", entry=ENTRY.replace("p/out", "''"))


@pytest.mark.parametrize(
    ("platform", "mode", "said"),
    [
        ("local", "link", "only a folder with mode: upload has it, and this one has mode link"),
        ("slurm", "mount", "only a folder with mode: upload has it, and this one has mode mount"),
        ("kubernetes", "download", "only a folder with mode: upload has it, and this one has mode download"),
        ("aml", "mount", "only a folder with mode: upload has it, and this one has mode mount"),
    ],
)
def test_a_mode_or_a_platform_without_them_is_refused_with_its_line(
    tmp_path: Path, platform: str, mode: str, said: str
) -> None:
    entry = ENTRY.replace("mode: upload", f"mode: {mode}")
    cluster = load(tmp_path, "checkpoints: c-*", entry=entry, platform=platform)
    (refused,) = cluster.job_refusals
    assert said in refused.error.message and refused.error.line == 3
    with pytest.raises(ConfigError, match="checkpoints"):
        describe(cluster, SubmitRequest(("true",)), "me_1_0badcafe", None)


def test_jobs_take_the_rule_along_and_records_without_one_stay_readable(tmp_path: Path) -> None:
    cluster = load(tmp_path, "checkpoints: c-*, complete: [a.json], keep_last: 2")
    spec = describe(cluster, SubmitRequest(("true",)), "me_1_0badcafe", None)
    assert JobSpec.from_json(spec.to_json()) == spec
    assert spec.folders[0].checkpoints == cluster.folders[0].checkpoints
    old = json.loads(spec.to_json())
    del old["folders"][0]["checkpoints"]
    assert JobSpec.from_json(json.dumps(old)).folders[0].checkpoints is None
    for wrong in ({"sets": 7}, {"sets": "c", "complete": "text"}, {"sets": "c", "complete": [], "new": 1}, "c-*"):
        old["folders"][0]["checkpoints"] = wrong
        with pytest.raises(ValueError, match=r"not a job specification|wrong type"):
            JobSpec.from_json(json.dumps(old))


@pytest.mark.parametrize(
    ("rule", "rights"),
    [
        (None, "rcwl"),
        (CheckpointRule("c-*"), "rcwl"),
        (CheckpointRule("c-*", keep_last=1), "rcwdl"),
        (CheckpointRule("c-*", keep_every=1), "rcwdl"),
        (CheckpointRule("c-*", keep_best="a:b"), "rcwdl"),
    ],
)
def test_only_a_key_that_lets_sets_go_brings_the_right_to_delete(rule: CheckpointRule | None, rights: str) -> None:
    link = FolderLink("output", "https://a/b", "p", "upload", checkpoints=rule)
    assert rights_needed(make_spec(folders=(link,))) == {"https://a/b": rights}


def test_the_lineage_is_the_first_jobs_and_nothing_else_is_believed() -> None:
    spec = make_spec()
    assert spec.lineage == spec.run_id
    assert replace(spec, options={"lineage": "me_0_0badcafe"}).lineage == "me_0_0badcafe"
    for wrong in ("../x", "", 7, None):
        values = {**json.loads(spec.to_json()), "options": {"lineage": wrong}}
        assert JobSpec.from_json(json.dumps(values)).lineage == spec.run_id
    assert asdict(spec)["options"] == {}
