"""A job's place stays recorded when its cluster file changes, and no secret is recorded."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from blobsync.base.errors import BackendUnavailableError, JobError
from blobsync.config.loader import load_cluster
from blobsync.jobs.context import JobContext
from blobsync.jobs.history import History
from blobsync.jobs.record import Home, JobRecord, home_of, without_secrets
from blobsync.jobspec.spec import JobRef
from blobsync.local.state_dir import open_state_dir
from tests.fakes.jobs import make_spec

ENVIRON: dict[str, str] = {**os.environ}


def write(root: Path, name: str, **values: Any) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(values))
    file.chmod(0o600)
    return file


def recorded(root: Path, environ: Mapping[str, str], name: str | None = None, **overrides: Any) -> JobRecord:
    """A job as ``submit`` records it."""
    cluster = load_cluster(root, name, overrides=overrides, environ=environ)
    spec = make_spec("true", cluster=cluster.name, platform=cluster.platform)
    context = JobContext(root, environ, cluster)
    ref = JobRef(spec.run_id, "17", f"/x/{spec.run_id}")
    return context.history.add(spec, ref, cluster.platform, home=home_of(cluster, environ))


def found(root: Path, record: JobRecord) -> tuple[JobContext, JobRecord]:
    """The project in a later command: another process, without options."""
    context = JobContext(root, ENVIRON)
    return context, context.history.find(record.run_id)


def test_a_file_of_the_environment_variable_is_found_again_without_it(tmp_path: Path) -> None:
    file = write(tmp_path, "elsewhere/v100.yaml", platform="slurm", ssh="me@one")
    (tmp_path / "aux_data" / "aml").mkdir(parents=True)
    context, record = found(tmp_path, recorded(tmp_path, {**ENVIRON, "AML_CONFIG_PATH": str(file)}))
    assert context.backend_of(record).name == "slurm"
    assert context.cluster_of(record).text("ssh") == "me@one"


def test_a_link_is_found_again_by_its_own_path(tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/v100.yaml", platform="slurm")
    (tmp_path / "aux_data" / "aml").mkdir(parents=True)
    (tmp_path / "aux_data" / "aml" / "aml.yaml").symlink_to("../../elsewhere/v100.yaml")
    context, record = found(tmp_path, recorded(tmp_path, ENVIRON))
    assert record.cluster == "v100" and context.backend_of(record).name == "slurm"


def test_what_p_changed_leads_back_to_the_backend_that_has_the_job(tmp_path: Path) -> None:
    write(tmp_path, "aux_data/aml/aml.yaml", platform="slurm", ssh="me@one")
    context, record = found(tmp_path, recorded(tmp_path, ENVIRON, platform="local"))
    assert context.backend_of(record).name == "local"
    assert context.backend(context.cluster("aml")).name == "slurm"


def test_another_cluster_that_took_the_name_is_not_asked(tmp_path: Path) -> None:
    write(tmp_path, "aux_data/aml/aml.yaml", platform="slurm", ssh="me@one")
    record = recorded(tmp_path, ENVIRON)
    write(tmp_path, "aux_data/aml/aml.yaml", platform="local")
    context, record = found(tmp_path, record)
    assert (context.backend_of(record).name, context.cluster_of(record).text("ssh")) == ("slurm", "me@one")
    write(tmp_path, "aux_data/aml/aml.yaml", platform="slurm", ssh="me@two")
    context, record = found(tmp_path, record)
    assert context.cluster_of(record).text("ssh") == "me@one"


def test_todays_file_is_taken_while_it_leads_to_the_same_place(tmp_path: Path) -> None:
    write(tmp_path, "aux_data/aml/aml.yaml", platform="slurm", slurm={"partition": "old"})
    record = recorded(tmp_path, ENVIRON)
    write(tmp_path, "aux_data/aml/aml.yaml", platform="slurm", slurm={"partition": "new"})
    context, record = found(tmp_path, record)
    assert context.cluster_of(record).text("slurm.partition") == "new"


def test_a_file_that_is_gone_is_replaced_by_what_it_said(tmp_path: Path) -> None:
    file = write(tmp_path, "aux_data/aml/aml.yaml", platform="slurm", ssh="me@one")
    record = recorded(tmp_path, ENVIRON)
    file.unlink()
    context, record = found(tmp_path, record)
    assert context.cluster_of(record).text("ssh") == "me@one"


def test_a_job_of_an_older_history_is_not_taken_to_another_platform(tmp_path: Path) -> None:
    write(tmp_path, "aux_data/aml/aml.yaml", platform="local")
    context = JobContext(tmp_path, ENVIRON)
    record = context.history.add(
        make_spec("true", cluster="aml", platform="slurm"), JobRef("me_1_0badcafe", "17"), "slurm"
    )
    with pytest.raises(BackendUnavailableError, match="belongs to slurm, but cluster aml is now local"):
        context.backend_of(record)


def test_no_secret_is_recorded(tmp_path: Path) -> None:
    write(
        tmp_path,
        "aux_data/aml/aml.yaml",
        platform="slurm",
        docker={"image": "x", "password": "SENTINEL1", "args": ["-e", "MY_TOKEN=SENTINEL2", "--ipc=host"]},
        env={"WANDB": "SENTINEL3", "A_KEY": "SENTINEL4"},
        secret_env=["WANDB"],
        setup="curl 'https://x/y?sv=1&sig=SENTINEL5'",
    )
    recorded(tmp_path, ENVIRON, **{"env$B": "SENTINEL6", "docker$password": "SENTINEL7"})
    text = home_of(load_cluster(tmp_path, environ=ENVIRON), ENVIRON).to_json()
    assert "SENTINEL" not in text and "--ipc=host" in text
    with sqlite3.connect(open_state_dir(tmp_path, ENVIRON).jobs_file) as database:
        (home,) = database.execute("select home from jobs").fetchone()
    database.close()
    assert "SENTINEL" not in home


def test_keys_that_only_sound_like_secrets_stay() -> None:
    kept = {"ssh_public_key": "ssh-rsa AAAA", "use_cli_auth": True, "aml_config": "x.json", "slurm": {"partition": "a"}}
    assert without_secrets(kept) == kept


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("home", "[]"),
        ("home", '{"platform": 1, "address": {}}'),
        ("home", '{"platform": "slurm", "address": {"ssh": 1}}'),
        ("spec", "{}"),
        ("spec", make_spec("true", run_id="../../x").to_json()),
        ("spec", make_spec("true", run_id="me_2_other").to_json()),
        ("run_id", "../../x"),
        ("state", "Dancing"),
        ("submitted", "soon"),
    ],
)
def test_a_row_that_blobsync_did_not_write_is_refused(tmp_path: Path, column: str, value: str) -> None:
    history = History(tmp_path / "jobs.sqlite")
    history.add(make_spec("true"), JobRef("me_1_0badcafe", "17", "/x"), "local")
    with sqlite3.connect(tmp_path / "jobs.sqlite") as database:
        database.execute(f"update jobs set {column}=?", (value,))
    database.close()
    with pytest.raises(JobError, match=r"holds a row that blobsync did not write"):
        history.page()


def test_a_home_survives_json() -> None:
    home = Home("slurm", {"ssh": "me@one"}, "/p/aml.yaml", {"num_gpu": 4}, {"platform": "slurm"})
    assert Home.from_json(home.to_json()) == home
    assert json.loads(home.key) == ["slurm", {"ssh": "me@one"}]
