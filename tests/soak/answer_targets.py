"""What Azure ML, Slurm and the computer that drives a cluster answer, and the emulator's own files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from blobsync.backends.aml import replies as aml
from blobsync.backends.aml.computes import summary_of
from blobsync.backends.aml.error_responses import as_error, read_refusal
from blobsync.backends.login_node import LoginNode
from blobsync.backends.slurm import replies as slurm
from blobsync.base.errors import BlobsyncError
from blobsync.base.plain_json import parse_object
from blobsync.base.process import Completed
from blobsync.config.model import WorkspaceConfig
from blobsync.emulator.server import Emulator, kept_account
from tests.fakes.jobs import make_spec
from tests.fakes.runner import ScriptedRunner
from tests.soak.target import Target, ignoring, text

_PLACE = WorkspaceConfig(file="w.json", subscription_id="s", resource_group="g", workspace_name="w")


def _aml(data: bytes) -> None:
    for status in (400, 403, 404, 429, 500):
        refusal = read_refusal(status, text(data), {})
        str(as_error(refusal, _PLACE, "submit"))
    try:
        body = aml.AmlReply(parse_object(data))
    except ValueError:
        return
    readers: Sequence[Callable[[], object]] = (
        lambda: aml.read_job(body, body),
        lambda: aml.studio_url(body),
        lambda: aml.secrets_uri(body),
        lambda: aml.artifacts(body),
        lambda: aml.read_spec(body),
        lambda: summary_of(body, 8),
        lambda: aml.read_quota(body),
        lambda: aml.read_holders(body, 8),
        lambda: list(aml.log_names(body.texts("logFiles"))),
    )
    for read in readers:
        try:
            read()
        except BlobsyncError as error:
            str(error)


def _slurm(data: bytes) -> None:
    said = text(data)
    for job in (*slurm.read_squeue(said).values(), *slurm.read_sacct(said).values()):
        slurm.as_run_info("me_1", job)
    lines = said.splitlines()
    slurm.read_summary(lines, lines)
    slurm.read_holders(slurm.read_tasks("\n".join(lines)).values())
    slurm.submitted_id(said)
    slurm.complaint(said)


def _login(_: Path) -> Callable[[bytes], None]:
    process = ScriptedRunner()
    login = LoginNode(process, "me@login", {}, "python3")
    requests: Sequence[Callable[[], object]] = (
        lambda: login.write("jobs/a", {}),
        lambda: login.find("jobs/a"),
        lambda: login.clear("jobs/a"),
        lambda: login.logs("jobs/a"),
        lambda: login.read("jobs/a/x", 0, None),
        lambda: login.exit_codes(["jobs/a"]),
        lambda: login.begun(["jobs/a"]),
    )

    def run(data: bytes) -> None:
        process.answer = lambda call: Completed(0, text(data), "")
        for request in requests:
            try:
                request()
            except BlobsyncError as error:
                str(error)

    return run


def _emulator(scratch: Path) -> Callable[[bytes], None]:
    emulator = Emulator(scratch, environ={})
    folder = scratch / "emulator"
    folder.mkdir(mode=0o700)

    def run(data: bytes) -> None:
        for name in ("account.json", "state.json"):
            (folder / name).write_bytes(data)
        emulator.status()
        kept_account(folder)

    return run


def _job() -> bytes:
    spec = make_spec("true").to_json()
    properties = {
        "status": "Failed",
        "tags": {"blobsync": "1", "amlk8s status": "killing", "blobsync.spec.00": spec},
        "services": {"Studio": {"endpoint": "https://ml.azure.com/runs/x"}},
        "inputs": {"secrets": {"uri": "azureml://datastores/d/paths/x.json"}},
        "managed": {"quotas": {"ND40": {"limits": [{"slaTier": "Basic", "used": 1, "limit": 8}]}}},
        "computeType": "AmlCompute",
        "properties": {
            "vmSize": "ND40",
            "scaleSettings": {"maxNodeCount": 4},
            "nodeStateCounts": {"runningNodeCount": 1, "unusableNodeCount": 1},
        },
    }
    run = {"runId": "a", "status": "Queued", "createdBy": {"upn": "u"}, "compute": {"instanceCount": 2}, "tags": {}}
    details = {
        "startTimeUtc": "2026-11-20T10:00:00.1234567Z",
        "endTimeUtc": "2026-11-20T10:01:00+00:00",
        "error": {
            "error": {"code": "UserError", "message": "exited with status code 7", "details": [{"message": "m"}]}
        },
        "logFiles": {"user_logs/std_log.txt": "https://acct.blob.core.windows.net/a"},
    }
    return json.dumps({"name": "me_1", "properties": properties, "value": [run], **details}).encode()


_SQUEUE = "".join(
    cell.ljust(width)
    for cell, (_, width) in zip(
        ("17_3", "RUNNING", "1", "256", "2026-11-20T10:00:00", "N/A", "2-4", "gres:gpu:4", "me", "n[01-02,5],m1"),
        slurm.COLUMNS,
        strict=False,
    )
).encode()
_SACCT = (
    b"17|FAILED|7:0|2026-11-20T10:00:00|2026-11-20T10:05:00|n[08-10],m1|name\n18|CANCELLED by 1|0:15|None|Unknown||x\n"
)
_SINFO = b"n1".ljust(64) + b"mixed".ljust(32) + b"gpu:a100:8(S:0-1)".ljust(96) + b"gpu:a100:6(IDX:0-5)".ljust(96)
_ANSWERS = (
    {"answer": "/home/me/jobs/a"},
    {"answer": ["/home/me/jobs/a", "17"]},
    {"answer": [["user_logs/a.txt", 5]]},
    {"answer": "aGVsbG8="},
    {"answer": [[0, 1.5]]},
    {"error": "Permission denied: /x"},
)

TARGETS = (
    Target("aml-answers", ignoring(_aml), (_job(),), (b"[", b"null", b"digits", b"<", b"exit code: ")),
    Target("aml-answers-tree", ignoring(_aml), (_job(),), tree=True),
    Target(
        "slurm-answers",
        ignoring(_slurm),
        (_SQUEUE, _SACCT, _SINFO),
        (b"|", b":", b"[", b"]", b"-", b"gpu:", b"9" * 9, b"0" * 9, b"(", b"CANCELLED", b"\n"),
    ),
    Target("login-answers", _login, tuple(json.dumps(each).encode() for each in _ANSWERS), tree=True),
    Target(
        "emulator-files",
        _emulator,
        (
            b'{"key": "U0VOVElORUw=", "port": 10000}',
            b'{"pid": 1, "port": 1, "accounts": ["a"], "location": null, "version": "3"}',
        ),
        tree=True,
    ),
)
