"""The form for a job: its submission, its errors, and a form filled from a recorded job."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.backends import create_backend
from blobsync.base.errors import BlobsyncError, ConfigError, NothingMatchedError, UnsafeNameError, UsageError
from blobsync.config.checkpoint_rule import CheckpointRule
from blobsync.config.job_keys import ONLY_ON
from blobsync.config.known_keys import CHECKPOINT_KEYS, PLATFORMS
from blobsync.config.loader import load_cluster, parse_overrides
from blobsync.jobs.context import JobContext
from blobsync.jobs.form.fields import (
    BY_NAME,
    FIELDS,
    FOLDER_FIELD_BY_KEY,
    fields_of,
    known_key,
)
from blobsync.jobs.form.filled import (
    AskedJob,
    CheckedForm,
    JobForm,
    check_form,
    form_of_job,
    param_text,
    text_of_command,
    words_of,
)
from blobsync.jobs.form.templates import load_template, save_template, template_names
from blobsync.jobs.preflight import around
from blobsync.jobs.record import JobRecord
from blobsync.jobspec.make_spec import SubmitRequest, describe
from blobsync.jobspec.spec import CodeRef, JobSpec
from tests.fakes.backend import FakeBackend
from tests.unit.project_files import NO_ENVIRON, ProjectFiles

ENTRY = "azure_blob_config_file: aux_data/configs/acct.yaml"
CODE = f"code_path: {{{ENTRY}, path: me/code.zip}}"
FOLDER = f"data_folder: {{{ENTRY}, path: me/data}}"
CLUSTERS: Mapping[str, str] = {
    "here": f"platform: local\nenv: {{A: '1', MY_TOKEN: abcdef}}\nconfig_param: {{{FOLDER}}}\n",
    "slurm": f"platform: slurm\ngpu_per_node: 4\nconfig_param: {{{CODE}, {FOLDER}}}\n",
    "bare": "platform: local\n"
    "azure_blob_config_file: aux_data/configs/acct.yaml\nconfig_param: {data_folder: me/data}\n",
    "kube": f"platform: kubernetes\nkubernetes: {{image: i, namespace: n}}\nconfig_param: {{{CODE}, {FOLDER}}}\n",
    "sing": f"platform: singularity\naml_config: {{subscription_id: s, resource_group: g, workspace_name: w}}\n"
    "compute_target: vc\nsingularity_instance_type: ND40\nsingularity_sla_tier: Premium\ndocker: {image: i}\n"
    f"config_param: {{{CODE}, {FOLDER}}}\n",
    "aml": f"platform: aml\naml_config: {{subscription_id: s, resource_group: g, workspace_name: w}}\n"
    f"compute_target: gpus\ndocker: {{image: i}}\nconfig_param: {{{CODE}, {FOLDER}}}\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = ProjectFiles(tmp_path)
    for name, text in CLUSTERS.items():
        files.cluster(text, name)
    return tmp_path


def check(root: Path, cluster: str, **values: str) -> CheckedForm:
    return check_form(root, JobForm(cluster, {"command": "python train.py", **values}), NO_ENVIRON)


def asked(root: Path, cluster: str, **values: str) -> AskedJob:
    found = check(root, cluster, **values)
    assert found.asked, found.mistakes
    return found.asked


def spec_of(root: Path, submission: AskedJob) -> JobSpec:
    cluster = load_cluster(root, submission.cluster, overrides=submission.overrides, environ=NO_ENVIRON)
    return describe(cluster, submission.request, "me_1_0badcafe", CodeRef("https://a/c", "code.zip", ""))


def test_the_fields_of_a_platform_are_those_of_the_tables_of_config_check() -> None:
    for field in FIELDS:
        for platform in PLATFORMS if field.key and not field.only else ():
            section = field.key.partition(".")[0]
            wanted = platform == section if section in PLATFORMS else platform in ONLY_ON.get(field.key, PLATFORMS)
            assert (field in fields_of(platform)) == wanted, (field.name, platform)
    named = {platform: {field.name for field in fields_of(platform)} for platform in PLATFORMS}
    assert "partition" in named["slurm"] and "partition" not in named["aml"]
    assert "elastic" in named["kubernetes"] and "elastic" not in named["aml"]
    assert {"priority", "sla_tier", "instance_type"} <= named["singularity"] and "priority" not in named["aml"]
    assert BY_NAME["launcher"].choices == ("mpi", "pytorch", "none")
    assert all(known_key(field.key) for field in FIELDS if field.key)


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("python train.py --lr 0.1", ("python", "train.py", "--lr", "0.1")),
        ("python 'a b.py'", ("python", "a b.py")),
        ("make && ./run.sh", ("make && ./run.sh",)),
        ("echo $HOME", ("echo $HOME",)),
        ("echo 'unclosed", ("echo 'unclosed",)),
        ("a\nb", ("a\nb",)),
        ("", ()),
    ],
)
def test_a_command_is_words_unless_only_a_shell_can_read_it(text: str, argv: tuple[str, ...]) -> None:
    assert words_of(text) == argv


@pytest.mark.parametrize(
    "argv", [("python", "a b.py"), ("make && x",), ("echo hi",), ("--odd",), ("a", "", "'"), (" x ",), ("x\ny",)]
)
def test_a_recorded_command_comes_back_as_the_same_words(argv: tuple[str, ...]) -> None:
    assert words_of(text_of_command(argv)) == argv


CHECKPOINTS: Mapping[str, str] = {
    "folder_checkpoints:data": "run-*/checkpoint-*",
    "folder_complete:data": "trainer_state.json; ../latest",
    "folder_settle_seconds:data": "10",
    "folder_restore:data": "1200",
    "folder_restore_from:data": "me_1_0badcafe",
    "folder_keep_last:data": "3",
    "folder_keep_every:data": "1000",
    "folder_keep_best:data": "trainer_state.json:best_metric:max",
    "folder_upload_cores:data": "2",
    "folder_cap_mbps:data": "800",
}

FILLED: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "nothing but a command": ("here", {}),
    "everything on this machine": (
        "here",
        {
            "name": "a name",
            "num_gpu": "2",
            "single": "yes",
            "env": "B=two words\nC=a=b",
            "setup": "pip install x\nmake",
            "retries": "2",
            "other": "runtime: {keep_root: always}",
            "folder_mode:data": "download",
            "folder_parts:data": "coco; voc/2012",
        },
    ),
    "a shell line": ("here", {"command": "for i in 1 2; do echo $i; done"}),
    "a sweep": ("slurm", {"command": "train {lr} {seed}", "sweep": "lr=0.1,0.01\nseed=0..2", "parallel": "2"}),
    "a sweep side by side": ("here", {"command": "a {lr}", "sweep": "lr=0.1,0.01\nseed=3,4", "zip": "yes"}),
    "a bare path": ("bare", {"folder_mode:data": "download"}),
    "checkpoints": ("slurm", {"folder_mode:data": "upload", **CHECKPOINTS}),
    "Slurm": ("slurm", {"nodes": "2", "partition": "gpu", "array": "0-3", "time": "2-12:00:00", "timeout": "5h"}),
    "an elastic job": ("slurm", {"elastic": "1:4", "nodes": "2"}),
    "the code": ("here", {"ignore": "*.ckpt\n/data/old"}),
    "Singularity": ("sing", {"instance_type": "ND96", "sla_tier": "Basic"}),
    "Kubernetes": ("kube", {"queue": "q", "memory": "64Gi", "image": "other:1", "env": "X=\u2028\u0085y"}),
    "Azure ML": ("aml", {"nodes": "2", "compute_target": "big", "preemption_allowed": "no"}),
}


def test_a_quote_that_is_not_closed_is_found_where_it_is(root: Path) -> None:
    (mistake,) = check(root, "here", command="true", setup="pip install 'torch\ntrue").mistakes
    assert mistake.field == "setup" and "a quote is opened and not closed" in mistake.message
    (command, setup) = check(root, "here", command="echo 'a", setup="echo 'a").mistakes
    assert (command.field, setup.field) == ("command", "setup"), "one does not hide the other"
    assert check(root, "here", command="true", setup="echo it\\'s  # it's\necho 'a\nb'").mistakes == ()


@pytest.mark.parametrize("case", FILLED)
def test_the_exported_command_line_asks_for_the_same(root: Path, case: str) -> None:
    cluster, values = FILLED[case]
    submission = asked(root, cluster, **values)
    words = submission.command_line
    assert words[:3] == ("blobsync", "-c", cluster)
    param = dict(parse_overrides(words[words.index("-p") + 1])) if "-p" in words else {}
    assert param == submission.param
    assert words[-len(submission.argv) :] == submission.argv
    assert shlex.split(shlex.join(words)) == list(words)


@pytest.mark.parametrize("case", FILLED)
def test_a_form_filled_from_a_recorded_job_asks_for_the_same_again(root: Path, case: str) -> None:
    cluster_name, values = FILLED[case]
    submission = asked(root, cluster_name, **values)
    cluster = load_cluster(root, cluster_name, overrides=submission.overrides, environ=NO_ENVIRON)
    environ = {**os.environ, "HOME": str(root / "home")}
    context = JobContext(root, environ, cluster, backends={cluster_name: FakeBackend()})
    record = recorded(context, cluster_name, submission)
    known = load_cluster(root, cluster_name, environ=NO_ENVIRON)
    again = check_form(root, form_of_job(record, known).form, NO_ENVIRON)
    assert again.asked, again.mistakes
    assert spec_of(root, again.asked) == spec_of(root, submission)
    assert again.asked.param == submission.param


def recorded(context: JobContext, cluster_name: str, submission: AskedJob) -> JobRecord:
    from blobsync.jobs.record import home_of
    from blobsync.jobspec.spec import JobRef

    assert context.current
    spec = describe(context.current, submission.request, "me_1_0badcafe", None)
    home = home_of(context.current, context.environ)
    return context.history.add(spec, JobRef(spec.run_id, "n", ""), cluster_name, home=home)


WITH_CHECKPOINTS = {"folder_mode:data": "upload", "folder_checkpoints:data": "*.ckpt"}
MISTAKES: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, str]]] = {
    "no command": ("here", {"command": ""}, {"command": "no command given"}),
    "several at once": (
        "slurm",
        {"command": " ", "nodes": "0", "num_gpu": "x", "elastic": "4", "timeout": "soon", "env": "A=1\nB"},
        {
            "command": "no command given",
            "nodes": "nodes 0: at least 1",
            "num_gpu": "'x' is not a whole number",
            "elastic": "--elastic '4' is not MIN:MAX",
            "timeout": "'soon' is not a duration: write 90m, 5h or 2d",
            "env": "line 2: not NAME=VALUE",
        },
    ),
    "too many GPUs": ("slurm", {"num_gpu": "6"}, {"num_gpu": "6 GPUs do not fill whole nodes of 4"}),
    "two nodes here": ("here", {"nodes": "2"}, {"nodes": "this machine is one node, but the job requests 2"}),
    "no duration": ("here", {"timeout": "soon"}, {"timeout": "'soon' is not a duration: write 90m, 5h or 2d"}),
    "a sweep of no values": ("here", {"sweep": "lr"}, {"sweep": "--sweep 'lr' is not NAME=VALUE,VALUE"}),
    "a placeholder in quotes": (
        "here",
        {"command": 'echo "{lr}" x', "sweep": "lr=1"},
        {"command": "{lr} stands inside of quotes"},
    ),
    "tasks of no sweep": ("here", {"parallel": "2"}, {"parallel": "--parallel is for the tasks of --sweep"}),
    "no digest": ("here", {"code": "xyz"}, {"code": "--code 'xyz': not a digest of code"}),
    "no pattern": ("here", {"ignore": "*.x\n["}, {"ignore": "ignore: bad pattern '['"}),
    "negative": ("here", {"retries": "-1"}, {"retries": "must not be negative"}),
    "no number": ("here", {"retries": "a few"}, {"retries": "must be a whole number, not a text"}),
    "a choice": ("aml", {"launcher": "srun"}, {"launcher": "'srun' is not one of mpi, pytorch, none"}),
    "a field of another platform": (
        "aml",
        {"partition": "gpu"},
        {"cluster": "Partition: jobs on aml do not have it: leave it empty"},
    ),
    "another tier": ("aml", {"sla_tier": "Spot"}, {"sla_tier": "only serverless jobs have one"}),
    "a mode": (
        "here",
        {"folder_mode:data": "lnik"},
        {"folder_mode:data": "'lnik' is not one of link, mount, ro_mount, download, upload"},
    ),
    "numbers of checkpoints": (
        "slurm",
        {
            **WITH_CHECKPOINTS,
            "folder_restore:data": "best",
            "folder_keep_last:data": "all",
            "folder_cap_mbps:data": "0",
        },
        {
            "folder_restore:data": "best needs keep_best",
            "folder_keep_last:data": "must be a whole number, not a text",
            "folder_cap_mbps:data": "must be at least 1",
        },
    ),
    "values of checkpoints": (
        "slurm",
        {
            "folder_mode:data": "upload",
            "folder_checkpoints:data": "../x",
            "folder_restore:data": "first",
            "folder_complete:data": "still; a.json",
            "folder_keep_best:data": "loss",
            "folder_cap_mbps:data": "0",
        },
        {
            "folder_checkpoints:data": "'../x' is no pattern of folders or files",
            "folder_restore:data": "'first' is none of latest, best, own, none",
            "folder_complete:data": "still cannot be combined",
            "folder_keep_best:data": "'loss' is not FILE:FIELD",
            "folder_cap_mbps:data": "must be at least 1",
        },
    ),
    "no pattern of checkpoints": (
        "slurm",
        {"folder_mode:data": "upload", "folder_keep_last:data": "2"},
        {"folder_keep_last:data": "counts only with checkpoints: PATTERN beside it"},
    ),
    "checkpoints of a mounted folder": (
        "slurm",
        {"folder_mode:data": "mount", "folder_checkpoints:data": "*.ckpt"},
        {"folder_checkpoints:data": "only a folder with mode: upload has it, and this one has mode mount"},
    ),
    "checkpoints on several nodes of Azure ML": (
        "aml",
        {**WITH_CHECKPOINTS, "nodes": "2"},
        {"folder_checkpoints:data": "does not work on the 2 nodes of a job on Azure ML"},
    ),
    "an amount": ("kube", {"memory": "64 GB"}, {"memory": "'64 GB' is not an amount of memory"}),
    "a link to no file system": (
        "aml",
        {"folder_mode:data": "link"},
        {"folder_mode:data": "mode link needs a file"},
    ),
    "bad YAML": ("here", {"other": "{a: "}, {"other": "-p: is not valid YAML"}),
    "said twice": (
        "here",
        {"retries": "1", "other": "retries: 2"},
        {"other": "retries has a field of its own, which is filled in too"},
    ),
    "an unknown platform": ("here", {"other": "platform: slrum"}, {"cluster": "-p: platform: 'slrum' is not one of"}),
    "no such cluster": ("nowhere", {}, {"cluster": "no cluster 'nowhere'"}),
    "a variable": (
        "here",
        {"env": "X=${AWS_SECRET}"},
        {"env": "must not use the environment variable AWS_SECRET"},
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_each_mistake_is_at_its_field(root: Path, case: str) -> None:
    cluster, values, wanted = MISTAKES[case]
    found = check(root, cluster, **values)
    assert found.asked is None
    told = {mistake.field: mistake.message for mistake in found.mistakes}
    assert told.keys() == wanted.keys(), found.mistakes
    assert len(told) == len(found.mistakes), "each is said once"
    for field, words in wanted.items():
        assert told[field].startswith(words) or words in told[field], told


def test_mistakes_are_the_command_lines_sentences(root: Path) -> None:
    cluster = load_cluster(root, "slurm", overrides={"num_gpu": 6}, environ=NO_ENVIRON)
    with pytest.raises(BlobsyncError) as raised:
        describe(cluster, SubmitRequest(("true",)), "me_1_0badcafe", None)
    (mistake,) = check(root, "slurm", num_gpu="6").mistakes
    assert (mistake.message, mistake.hint) == (raised.value.message, raised.value.hint)


def test_what_a_platform_does_not_have_is_refused(root: Path) -> None:
    found = check(root, "here", partition="gpu", sla_tier="Spot")
    assert found.asked is None
    assert [(one.field, one.message) for one in found.mistakes] == [
        ("cluster", "SLA tier: jobs on local do not have it: leave it empty"),
        ("cluster", "Partition: jobs on local do not have it: leave it empty"),
    ]


def test_a_typed_machine_and_tier_count_where_the_file_has_keys_of_singularity(root: Path) -> None:
    typed = asked(root, "sing", instance_type="ND96", sla_tier="Basic")
    assert typed.param == {"singularity_instance_type": "ND96", "singularity_sla_tier": "Basic"}
    cluster = load_cluster(root, "sing", overrides=typed.overrides, environ=NO_ENVIRON)
    text = create_backend(around(cluster, NO_ENVIRON)).plan(spec_of(root, typed)).text
    assert '"instanceTypes": [\n            "ND96"\n' in text and '"slaTier": "Basic"' in text and "ND40" not in text
    # In -p, two keys for one thing are refused.
    both = load_cluster(root, "sing", overrides={"instance_type": "ND96"}, environ=NO_ENVIRON)
    with pytest.raises(ConfigError, match="-p: instance_type: conflicts with singularity_instance_type"):
        describe(both, SubmitRequest(("true",)), "me_1_x", None)


def test_patterns_of_the_form_replace_those_of_the_file(root: Path) -> None:
    typed = asked(root, "here", ignore="*.ckpt\n\n /data/old ")
    assert typed.param == {"ignore": ["*.ckpt", "/data/old"]}
    assert load_cluster(root, "here", overrides=typed.overrides, environ=NO_ENVIRON).ignore == ("*.ckpt", "/data/old")


def test_the_form_has_a_field_for_each_key_of_checkpoints() -> None:
    assert FOLDER_FIELD_BY_KEY.keys() == {"mode", "include", "checkpoints", *CHECKPOINT_KEYS}


def test_fields_of_checkpoints_change_single_keys_of_the_file(root: Path) -> None:
    file = root / "aux_data/aml/slurm.yaml"
    file.write_text(file.read_text().replace("me/data", "me/data, mode: upload, checkpoints: 'step-*', keep_last: 9"))
    typed = asked(root, "slurm", **{"folder_keep_last:data": "3", "folder_restore:data": "none"})
    assert typed.param == {"config_param": {"data_folder": {"keep_last": 3, "restore": "none"}}}
    (folder,) = spec_of(root, typed).folders
    assert folder.checkpoints == CheckpointRule("step-*", restore="none", keep_last=3)


def test_templates_come_back_as_they_were_saved(root: Path) -> None:
    typed = {"command": "a\nb: c", "env": "A=1", "folder_mode:data": "download", "time": "12:30:00", **CHECKPOINTS}
    form = JobForm("here", typed)
    assert save_template(root, "night-run", form) == "aux_data/jobs/night-run.yaml"
    assert template_names(root) == ("night-run",)
    assert load_template(root, "night-run").form == form
    with pytest.raises(UsageError, match="exists already"):
        save_template(root, "night-run", form)
    save_template(root, "night-run", replace(form, cluster="slurm"), replace=True)
    assert load_template(root, "night-run").form.cluster == "slurm"
    with pytest.raises(NothingMatchedError, match="there is no template day-run"):
        load_template(root, "day-run")


@pytest.mark.parametrize(
    "values",
    [
        {"env": "MY_TOKEN=abcdefgh"},
        {"command": "curl 'https://a.blob.core.windows.net/c/b?sv=1&sig=" + "A" * 43 + "%3D'"},
        {"other": "docker: {password: hunter22}"},
        {"other": "{docker$password: hunter22}"},
        {"other": "{unfinished"},
    ],
)
def test_a_template_with_a_credential_is_refused(root: Path, values: Mapping[str, str]) -> None:
    with pytest.raises(UsageError, match="looks like a credential") as raised:
        save_template(root, "x", JobForm("here", values))
    assert template_names(root) == () and "hunter22" not in str(raised.value)
    save_template(root, "x", JobForm("here", {"env": "MY_TOKEN=${BLOBSYNC_TOKEN}"}))


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "x" * 65, "a.yaml", "-n", "a\nb"])
def test_a_templates_name_is_no_path(root: Path, name: str) -> None:
    with pytest.raises(UnsafeNameError):
        load_template(root, name)
    with pytest.raises(UnsafeNameError):
        save_template(root, name, JobForm("here"))


def test_a_template_from_a_clone_reads_no_other_file_and_writes_none(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("command: stolen\n")
    folder = root / "aux_data/jobs"
    folder.mkdir()
    (folder / "link.yaml").symlink_to(secret)
    with pytest.raises(ConfigError, match="is a link"):
        load_template(root, "link")
    save_template(root, "link", JobForm("here", {"command": "mine"}), replace=True)
    assert secret.read_text() == "command: stolen\n" and not (folder / "link.yaml").is_symlink()
    (folder / "odd.yaml").write_text("cluster: here\nmine: 1\ncommand: x\nfolder_mode: {data: [1]}\n")
    with pytest.raises(ConfigError, match="must be a text"):
        load_template(root, "odd")
    (folder / "odd.yaml").write_text("cluster: here\nmine: 1\ncommand: x\n")
    assert load_template(root, "odd").notes == ("aux_data/jobs/odd.yaml: mine: unknown field, ignored",)


def test_a_template_does_not_say_whose_code_runs(root: Path) -> None:
    digest = "ab" * 32
    save_template(root, "x", JobForm("here", {"command": "true", "code": digest}))
    assert digest not in (root / "aux_data/jobs/x.yaml").read_text()
    (root / "aux_data/jobs/y.yaml").write_text(f"cluster: here\ncommand: 'true'\ncode: {digest}\n")
    filled = load_template(root, "y")
    assert filled.form.text("code") == "" and filled.form.text("command") == "true"
    assert "does not say whose code runs" in filled.notes[0]


def test_a_template_folder_that_leads_out_is_not_used(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "x.yaml").write_text("command: stolen\n")
    (root / "aux_data/jobs").symlink_to(outside)
    with pytest.raises(ConfigError, match="is a link"):
        load_template(root, "x")
    with pytest.raises(ConfigError, match="is a link"):
        save_template(root, "x", JobForm("here", {"command": "mine"}), replace=True)
    assert (outside / "x.yaml").read_text() == "command: stolen\n"


def test_param_is_yaml_whatever_it_holds() -> None:
    values = {"env": {"A": "\u0085\u2028\ufeff\x7f\t\"'\\ ${x} 😀", "B": "12:30:00"}, "n": [1, None, True, "3.10"]}
    assert parse_overrides(param_text(values)) == values
