from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blobsync.ancestors.batchai_runtime import VARIABLES
from blobsync.base.errors import ConfigError, CredentialError, SasPermissionError, UsageError
from blobsync.base.redaction import SasToken, Secret
from blobsync.config.model import Cluster, CodeEntry, Docker, FolderEntry, StorageAccount
from blobsync.jobspec.make_spec import SubmitRequest, demand_platform, describe, find_mirror, setup_lines
from blobsync.jobspec.node_secrets import grant, rights_needed
from blobsync.jobspec.spec import CodeRef, JobRef, LogMirror, TaskArray

BOX = StorageAccount("box.yaml", "acct", "box", "https://acct.blob", account_key=Secret("a2V5"))
OTHER = StorageAccount("other.yaml", "else", "bin", "https://else.blob", account_key=Secret("a2V5"))
CODE = CodeRef("https://acct.blob/box", "code.zip.d/x.zip", "x")


def make_cluster(**changes: Any) -> Cluster:
    values: dict[str, Any] = {"name": "eu", "file": "aux_data/aml/eu.yaml", "root": Path("/p"), **changes}
    return Cluster(**values)


@pytest.mark.parametrize("platform", ["local", "aml"])
def test_options_of_slurm_are_refused_elsewhere(platform: str) -> None:
    cluster = make_cluster(platform=platform)
    with pytest.raises(UsageError, match=rf"--time is for Slurm, and \w+ is {platform}") as caught:
        describe(cluster, SubmitRequest(("true",), options={"time": "1:00"}), "me_1_x", CODE)
    assert caught.value.hint and "timeout: 5h" in caught.value.hint
    with pytest.raises(UsageError, match="--gres is for Slurm"):
        describe(cluster, SubmitRequest(("true",), options={"gres": "gpu:1"}), "me_1_x", CODE)


@pytest.mark.parametrize("platform", ["kubernetes", "aml"])
def test_an_order_of_jobs_is_refused_where_there_is_none(platform: str) -> None:
    request = SubmitRequest(("true",), after=JobRef("me_1_0badcafe", "7", ""))
    with pytest.raises(UsageError, match=f"--after is for Slurm and this machine, and eu is {platform}"):
        describe(make_cluster(platform=platform), request, "me_1_x", CODE)
    assert describe(make_cluster(platform="slurm"), request, "me_1_x", CODE).after == "me_1_0badcafe"


@pytest.mark.parametrize("argv", [(), ("",), (" \n",), ("", "a word")])
def test_a_command_without_a_program_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="no command given"):
        describe(make_cluster(), SubmitRequest(argv), "me_1_x", CODE)


@pytest.mark.parametrize("line", ['echo "unclosed', "python train.py 'a b", "echo 'a\nb"])
@pytest.mark.parametrize("here", [False, True])
def test_a_shell_line_with_an_open_quote_is_refused(line: str, here: bool) -> None:
    with pytest.raises(UsageError, match="a quote is opened and not closed"):
        describe(make_cluster(), SubmitRequest((line,), here=here), "me_1_x", CODE)


@pytest.mark.parametrize(
    "argv",
    [
        # Words that no shell reads.
        ("echo", '"'),
        ("./it's",),
        ("echo it\\'s 'a\nb' # it's",),
        ("cat <<EOF\nit's\nEOF",),
        # Quotes within quotes, and a # that starts no comment.
        ('echo "$(echo \'a"b\')"',),
        ('echo "`echo \'"\'`"',),
        ("echo a#b 'c\nd'",),
        ("echo ${x#a} 'c\nd'",),
    ],
)
def test_what_a_shell_can_run_is_not_refused(argv: tuple[str, ...]) -> None:
    assert describe(make_cluster(), SubmitRequest(argv), "me_1_x", CODE).argv == argv


def test_a_specification_keeps_secrets_by_name_only() -> None:
    cluster = make_cluster(
        env={"A": "1,2", "WANDB_API_KEY": "hush", "PRIVATE": "too"}, values={"secret_env": ["PRIVATE"]}
    )
    spec = describe(cluster, SubmitRequest(("echo", "a b")), "me_1_x", CODE)
    assert spec.argv == ("echo", "a b") and spec.env == {"A": "1,2"}
    assert spec.secret_env == ("PRIVATE", "WANDB_API_KEY")
    assert "hush" not in spec.to_json() and "too" not in spec.to_json()


def test_what_the_cluster_file_says_arrives_in_the_specification() -> None:
    entry = FolderEntry("data", BOX, "d", mode="download", include=("voc",), blob_cache_timeout=9)
    cluster = make_cluster(
        platform="slurm",
        docker=Docker("img", "7"),
        folders=(entry,),
        values={"timeout": "90m", "retries": 2, "setup": "pip install x", "preemption_allowed": True},
    )
    spec = describe(cluster, SubmitRequest(("true",), name="n", options={"array": "0-3"}), "me_1_x", CODE)
    assert (spec.image, spec.timeout_s, spec.retries, spec.setup) == ("img:7", 5400, 2, ("pip install x",))
    assert spec.tasks == TaskArray(4, 0)
    told = {"container": {"file": "aux_data/aml/eu.yaml"}, "variables": VARIABLES}
    assert (spec.preemptible, spec.name, spec.options) == (True, "n", told)
    (folder,) = spec.folders
    assert (folder.mode, folder.include, folder.cache_seconds, folder.source) == ("download", ("voc",), 9, "")


@pytest.mark.parametrize(
    ("platform", "values", "mode", "source"),
    [
        ("local", {}, "link", "/p/data"),
        ("slurm", {}, "link", "/p/data"),
        ("slurm", {"slurm": {"shared_root": "/shared/me"}, "ssh": "me@x"}, "link", "/shared/me/data"),
        ("aml", {}, "mount", ""),
        ("kubernetes", {}, "mount", ""),
    ],
)
def test_how_folders_appear_by_default(platform: str, values: dict[str, Any], mode: str, source: str) -> None:
    cluster = make_cluster(platform=platform, folders=(FolderEntry("data", BOX, "d"),), values=values)
    (folder,) = describe(cluster, SubmitRequest(("true",)), "me_1_x", CODE).folders
    assert (folder.mode, folder.source) == (mode, source)


def test_a_job_that_waits_is_one_process_on_each_node_with_all_its_gpus() -> None:
    cluster = make_cluster(platform="slurm", gpu_per_node=8, values={"timeout": "8h"})
    spec = describe(cluster, SubmitRequest(("ssh",), 16), "me_1_x", CODE)
    assert (spec.argv, spec.hold, spec.timeout_s) == (("ssh",), 4 * 3600, 8 * 3600)
    assert (spec.nodes, spec.procs_per_node, spec.gpus_per_node) == (2, 1, 8)
    assert describe(cluster, SubmitRequest((), hold="90m"), "me_1_x", CODE).hold == 5400
    # In the foreground of this machine, and with arguments, ssh is a program like any other.
    assert not describe(cluster, SubmitRequest(("ssh",), here=True), "me_1_x", CODE).hold
    assert not describe(cluster, SubmitRequest(("ssh", "host")), "me_1_x", CODE).hold


@pytest.mark.parametrize(
    ("request_", "values", "said"),
    [
        (SubmitRequest(("python", "a.py"), hold="4h"), {}, "--hold and a command are two jobs"),
        (SubmitRequest((), hold="soon"), {}, "--hold soon: not a time"),
        (SubmitRequest(("ssh",), elastic="1:2"), {}, "has a fixed size"),
        (SubmitRequest(("ssh",)), {"min_nodes": 1, "max_nodes": 2}, "has a fixed size"),
        (SubmitRequest(("ssh",), options={"array": "0-3"}), {}, "cannot have tasks"),
        (SubmitRequest(("ssh",)), {"slurm": {"array": "0-3"}}, "cannot have tasks"),
    ],
)
def test_what_a_job_that_waits_cannot_be(request_: SubmitRequest, values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        describe(make_cluster(platform="slurm", values=values), request_, "me_1_x", CODE)


def test_azure_ml_runs_the_hooks_that_act_ran() -> None:
    lines = setup_lines(make_cluster(platform="aml", values={"compile_args": "-j 4"}))
    assert "requirements.txt" in lines[0] and lines[1].endswith("bash compile.aml.sh -j 4; fi")
    assert setup_lines(make_cluster(platform="slurm")) == ()
    assert setup_lines(make_cluster(platform="aml", values={"setup": "make"})) == ("make",)


def test_logs_are_mirrored_beside_the_output_folder() -> None:
    data, output = FolderEntry("data", OTHER, "d"), FolderEntry("output", BOX, "me/output")
    code = CodeEntry(OTHER, "code.zip")
    assert find_mirror(make_cluster(folders=(data, output)), "r") == LogMirror(
        "https://acct.blob/box", "me/output.logs/r"
    )
    assert find_mirror(make_cluster(folders=(data,), code=code), "r") == LogMirror(
        "https://else.blob/bin", "code.zip.logs/r"
    )
    assert find_mirror(make_cluster(folders=(data,)), "r") is None


def cluster_with_folders() -> Cluster:
    return make_cluster(
        platform="slurm",
        folders=(
            FolderEntry("data", BOX, "d", mode="download"),
            FolderEntry("model", BOX, "m"),
            FolderEntry("output", OTHER, "o", mode="upload"),
        ),
        code=CodeEntry(BOX, "code.zip"),
        env={"MY_TOKEN": "hush"},
    )


def test_nodes_get_the_least_rights_that_do() -> None:
    spec = describe(cluster_with_folders(), SubmitRequest(("true",)), "me_1_x", CODE)
    assert rights_needed(spec) == {"https://acct.blob/box": "rl", "https://else.blob/bin": "rcwl"}


def token(account: StorageAccount, rights: str, seconds: int) -> SasToken:
    return SasToken.parse(f"sp={rights}&sig=SENTINEL")


def test_one_token_per_container_and_secrets_from_the_cluster_file() -> None:
    cluster = cluster_with_folders()
    spec = describe(cluster, SubmitRequest(("true",)), "me_1_x", CODE)
    granted, secrets, warnings = grant(spec, [cluster], token)
    assert granted == spec and warnings == ()
    assert secrets.sas == {
        "https://acct.blob/box": "sp=rl&sig=SENTINEL",
        "https://else.blob/bin": "sp=racwl&sig=SENTINEL",
    }
    assert secrets.env == {"MY_TOKEN": "hush"}


def test_without_the_right_to_append_logs_are_not_mirrored() -> None:
    def stingy(account: StorageAccount, rights: str, seconds: int) -> SasToken:
        if "a" in rights:
            raise SasPermissionError("the SAS lacks add")
        return token(account, rights, seconds)

    cluster = cluster_with_folders()
    granted, _, warnings = grant(describe(cluster, SubmitRequest(("true",)), "me_1_x", CODE), [cluster], stingy)
    assert granted.logs is None and "will not be kept" in warnings[0]


def test_what_the_job_cannot_do_without_is_an_error() -> None:
    def refuse(account: StorageAccount, rights: str, seconds: int) -> SasToken:
        raise SasPermissionError("the SAS lacks read")

    cluster = cluster_with_folders()
    spec = describe(cluster, SubmitRequest(("true",)), "me_1_x", CODE)
    with pytest.raises(SasPermissionError):
        grant(spec, [cluster], refuse)
    with pytest.raises(CredentialError, match="this cluster file does not contain"):
        grant(spec, [make_cluster(env={"MY_TOKEN": "x"})], token)
    with pytest.raises(ConfigError, match="needs the secret variable MY_TOKEN"):
        grant(spec, [make_cluster()], token)


def test_a_job_that_moves_may_read_its_code_where_it_was() -> None:
    old, new = cluster_with_folders(), make_cluster(name="us", env={"MY_TOKEN": "theirs"})
    spec = describe(new, SubmitRequest(("true",)), "me_1_x", CODE)
    _, secrets, _ = grant(spec, [new, old], token)
    assert secrets.sas == {"https://acct.blob/box": "sp=rl&sig=SENTINEL"}
    assert secrets.env == {"MY_TOKEN": "theirs"}


PHILLY = {"vc": "team", "blob_mount_point": "/blob", "user_name": "joe"}


@pytest.mark.parametrize(
    ("values", "says", "road"),
    [
        (PHILLY, "is missing, and Philly, which this file is for, is gone", "convert philly aux_data/aml/eu.yaml"),
        ({**PHILLY, "platform": "philly"}, "names philly, a job platform that is gone", "convert philly"),
        ({"platform": "batchai"}, "names batchai, a job platform that is gone", "blobsync convert batchai JOB"),
    ],
)
def test_a_platform_that_is_gone_is_refused_with_the_roads(values: dict[str, Any], says: str, road: str) -> None:
    with pytest.raises(ConfigError) as caught:
        demand_platform(make_cluster(values=values, platform_given=False))
    assert says in caught.value.message and road in str(caught.value.hint)
    assert "--platform slurm" in str(caught.value.hint)


def test_programs_find_what_a_file_of_philly_says_and_env_wins() -> None:
    cluster = make_cluster(values=PHILLY, env={"PHILLY_USER": "me"})
    env = describe(cluster, SubmitRequest(("true",)), "me_1_x", CODE).env
    assert env == {"PHILLY_VC": "team", "PHILLY_USER": "me"}


def test_options_for_blobfuse_reach_the_node() -> None:
    entry = FolderEntry("data", BOX, "d", mode="mount", blob_fuse_options=("-o", "attr_timeout=240", "--x"))
    [folder] = describe(make_cluster(folders=(entry,)), SubmitRequest(("true",)), "me_1_x", CODE).folders
    assert (folder.mode, folder.fuse_options) == ("mount", ("-o attr_timeout=240", "--x"))
