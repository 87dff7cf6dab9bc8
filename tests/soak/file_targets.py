"""Configuration files, saved plans and the small files of state."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from blobsync.backends.local.queue import Capacity, LocalQueue
from blobsync.backends.local.run_files import RunFiles
from blobsync.base.errors import BlobsyncError
from blobsync.base.plan_reasons import Reason
from blobsync.base.process_identity import ProcessMark
from blobsync.config.accounts import AccountFile, WorkspaceFile, first_of
from blobsync.config.loader import load_cluster, parse_overrides
from blobsync.config.trust_store import TRUSTED_LINKS
from blobsync.config.user_config import load_user_config, user_config_file
from blobsync.config.yaml_document import read_document
from blobsync.jobs.history import History
from blobsync.jobs.record import JobFilter
from blobsync.jobspec.spec import JobRef, State
from blobsync.local.resume_records import RangeRecords, RecordedRange, UnfinishedDownload
from blobsync.local.running_records import RunningRecords
from blobsync.local.state_dir import open_state_dir
from blobsync.plan.progress import Progress, WorkerProgress
from blobsync.plan.saved_plan import load
from blobsync.plan.transfer_plan import Action, Direction
from blobsync.project.doctor import examine_downloads
from blobsync.project.transfer_history import RunningTransfer, RunningTransfers
from tests.cli.test_reports import _plan as make_plan
from tests.fakes.jobs import make_spec
from tests.soak.target import Target, text

_ACCOUNT = (
    b"account_name: acct\ncontainer_name: box\naccount_key: U0VOVElORUw=\nblob_endpoint: http://127.0.0.1:9/acct\n"
)
_CLUSTER = b"""\
platform: slurm
azure_blob_config_file: aux_data/configs/a.yaml
gpu_per_node: 4
multi_process: true
env: {A: 1, B: "${BLOBSYNC_X}"}
docker: {image: x:1, shm_size: 8 GB}
ignore: ["*.pt", /out]
zip_options: [-x, "a/*"]
slurm: {partition: p, time: "1:00:00", args: [--mem=1G]}
config_param:
  code_path: {path: code/x.zip}
  data_folder: &d {path: p/data, mode: link}
  data/inner_folder: {<<: *d, path: q}
  output_folder: p/output
"""
_ENVIRON = {"BLOBSYNC_X": "y"}


def _accounts(scratch: Path) -> Callable[[bytes], None]:
    file = scratch / "a.yaml"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        if problems := AccountFile(file, "a.yaml", _ENVIRON).problems:
            raise first_of(problems)

    return run


def _clusters(scratch: Path) -> Callable[[bytes], None]:
    for name, content in (("configs/a.yaml", _ACCOUNT), ("aml/aml.yaml", _CLUSTER)):
        (scratch / "aux_data" / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / "aux_data" / name).write_bytes(content)

    def run(data: bytes) -> None:
        (scratch / "aux_data/aml/aml.yaml").write_bytes(data)
        load_cluster(scratch, environ=_ENVIRON)

    return run


def _overrides(scratch: Path) -> Callable[[bytes], None]:
    _clusters(scratch)

    def run(data: bytes) -> None:
        load_cluster(scratch, overrides=parse_overrides(text(data)), environ=_ENVIRON)

    return run


def _workspaces(scratch: Path) -> Callable[[bytes], None]:
    file = scratch / "config.json"

    def run(data: bytes) -> None:
        file.write_bytes(data)
        WorkspaceFile(read_document(file, "config.json"), _ENVIRON)

    return run


def _users(scratch: Path) -> Callable[[bytes], None]:
    environ = {"XDG_CONFIG_HOME": str(scratch)}
    files = user_config_file(environ), TRUSTED_LINKS.file(environ)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def run(data: bytes) -> None:
        for file in files:
            file.write_bytes(data)
        try:
            load_user_config(environ)
        except BlobsyncError:
            pass
        TRUSTED_LINKS.load(scratch, environ)

    return run


def _plan_text() -> bytes:
    part = {"path": "data", "shape": "folder", "source": "/p/data", "destination": "https://a/b/data"}
    state = {"size": 1, "mtime_ns": 2, "inode": 3, "md5": None}
    action = {"path": "a", "action": "upload", "reason": "new", "size": 1, "source": state, "destination": None}
    options = {"engine": "auto", "mirror": False, "max_delete_percent": 10.0, "keep": None, "include": ["*.jpg"]}
    plan = {"blobsync_plan": 1, "command": "u", "cluster": "aml", "from_cluster": None, "paths": ["data"]}
    return json.dumps({**plan, "options": options, "parts": [{**part, "actions": [action]}]}).encode()


def _plans(scratch: Path) -> Callable[[bytes], None]:
    file, now = scratch / "plan.json", make_plan((Action.TRANSFER, Reason.NEW, 2))

    def run(data: bytes) -> None:
        file.write_bytes(data)
        saved = load(file)
        options = saved.options
        # What the planner does with them.
        assert saved.direction in tuple(Direction)
        assert all(isinstance(each, str) for each in (options.engine or "", options.links, options.keep or ""))
        assert all(isinstance(each, str) for each in (*options.include, *options.exclude, *saved.paths))
        assert all(
            isinstance(each, bool) for each in (options.mirror, options.overwrite, options.relay, options.receipt)
        )
        assert options.max_delete_files >= 0 <= options.max_delete_percent <= 100
        assert options.cap_mbps is None or options.cap_mbps > 0
        saved.check(now)

    return run


def _rows(scratch: Path) -> Callable[[bytes], None]:
    spec = make_spec("true")
    template = scratch / "template.sqlite"
    History(template).add(spec, JobRef(spec.run_id, "1", "/x"), "local")
    numbers = itertools.count()

    def run(data: bytes) -> None:
        try:
            row = json.loads(text(data))
        except (ValueError, RecursionError):
            row = {"spec": text(data)}
        file = scratch / f"{next(numbers)}.sqlite"
        shutil.copyfile(template, file)
        try:
            _replace(file, row if isinstance(row, dict) else {})
            history = History(file)
            for state in State:
                history.page(JobFilter((state,)))
            history.find(spec.run_id)
        finally:
            file.unlink()

    return run


def _replace(file: Path, row: dict[str, object]) -> None:
    with closing(sqlite3.connect(file)) as database, database:
        known = [column[1] for column in database.execute("pragma table_info(jobs)")]
        for name in known:
            if name in row:
                value = row[name]
                if isinstance(value, (dict, list)):
                    value = json.dumps(value)
                try:
                    database.execute(f"update jobs set {name}=?", (value,))
                except (sqlite3.Error, OverflowError, UnicodeEncodeError):
                    continue


def _row_text() -> bytes:
    spec = json.loads(make_spec("true").to_json())
    home = {"platform": "local", "address": {}, "file": "", "overrides": {}, "values": {}}
    times = {"submitted": 1.0, "started": 2.0, "ended": None, "confirmed": 1.0}
    words = {"native_id": "1", "place": "/x", "backend": "local", "cluster": "here", "nodes": "a,b", "reason": ""}
    row = {"spec": spec, "state": "Queued", "exit_code": None, "restarts": 0, "cancel_asked": 0, "successor_of": ""}
    return json.dumps({**row, **times, **words, "home": home}).encode()


def _tickets(scratch: Path) -> Callable[[bytes], None]:
    folder = scratch / "queue"

    def run(data: bytes) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        queue = LocalQueue(folder)
        (folder / "000000000001-me_1_0badcafe.ticket").write_bytes(data)
        with queue.claimed("me_2_0badcafe", 1):
            queue.entries()
            queue.try_start("me_2_0badcafe", Capacity(1, ("0", "1")))
        queue.leave("me_2_0badcafe")

    return run


def _run_state(scratch: Path) -> Callable[[bytes], None]:
    files = RunFiles(scratch)

    def run(data: bytes) -> None:
        files.state.write_bytes(data)
        files.read_status()
        files.supervisor_is_gone()

    return run


_PART = ".blobsync-0badcafe.part"
_UNFINISHED = UnfinishedDownload("/p/data/a", "https://a/b/data/a", "0x8DC", 1 << 20, _PART, 42)


def _running_records(scratch: Path) -> Callable[[bytes], None]:
    state = open_state_dir(scratch, {"XDG_STATE_HOME": str(scratch)})
    RunningRecords(state).write("0123abcd", {})

    def run(data: bytes) -> None:
        with closing(sqlite3.connect(state.unfinished_file)) as db, db:
            db.execute("UPDATE running SET record = ?", (data.decode("utf-8", "replace"),))
        for id, found in RunningTransfers(state).all().items():
            assert id == found.id == "0123abcd" and 0.0 <= found.progress.share <= 1.0
            json.dumps(asdict(found), allow_nan=False)

    return run


def _running_text() -> bytes:
    workers = (WorkerProgress("process 17", 1, 5, 2.5),)
    far = Progress("moving", 1.0, files=1, files_expected=4, bytes=5, seconds_left=2.0, workers=workers)
    mark = ProcessMark.of(os.getpid())
    found = RunningTransfer("0123abcd", mark.pid, mark.born, os.uname().nodename, 1.0, True, far)
    return json.dumps(asdict(found)).encode()


def _range_records(scratch: Path) -> Callable[[bytes], None]:
    environ = {"XDG_STATE_HOME": str(scratch)}
    state = open_state_dir(scratch, environ)
    records = RangeRecords(state)
    one = RecordedRange(0, 1 << 20, bytes(32))

    def run(data: bytes) -> None:
        record = records.start(_UNFINISHED)
        assert record is not None
        record.add(one)
        record.close()
        with closing(sqlite3.connect(state.unfinished_file)) as db, db:
            db.execute("UPDATE unfinished SET head = ?", (data.decode("utf-8", "replace"),))
        listed = list(records.all())
        list(examine_downloads(scratch, environ))
        record = records.take(_UNFINISHED.destination)
        if record is not None:
            assert listed == [(record.of, record.bytes)]
            # Each range is inside the file.
            assert all(0 <= each.start < each.start + each.length <= record.of.size for each in record.ranges)
            record.close()
        # Nothing is planned, so that no part file goes but one that is not there.
        records.tidy((), lambda _: True)
        record = records.start(_UNFINISHED)
        assert record is not None
        record.add(one)
        record.close()
        assert list(records.all()) == [(_UNFINISHED, one.length)]

    return run


def _record_text() -> bytes:
    return json.dumps(_UNFINISHED._asdict()).encode()


_YAML = (
    b": ",
    b"- ",
    b"\n  ",
    b"&d ",
    b"*d",
    b"<<: *d",
    b"!!int ",
    b"!!binary ",
    b"|\n",
    b">\n",
    b"? ",
    b"---\n",
    b"...\n",
    b"%TAG ",
)
_KEYS = (
    b"blob_endpoint",
    b"sas_token",
    b"account_key",
    b"env",
    b"docker",
    b"shm_size",
    b"${AZURE_CLIENT_SECRET}",
    b"${BLOBSYNC_X}",
)

TARGETS = (
    Target(
        "account-file",
        _accounts,
        (_ACCOUNT, b"account_name: acct\ncontainer_name: box\nsas_token: '?sv=1&se=2099-01-01&sig=a%3D'\nauth: sas\n"),
        (*_YAML, *_KEYS),
    ),
    Target("cluster-file", _clusters, (_CLUSTER,), (*_YAML, *_KEYS)),
    Target(
        "overrides",
        _overrides,
        (b"{gpu_per_node: 8, env: {A: b}}", b"{docker$image: other, config_param$x_folder: a/b}"),
        _YAML,
    ),
    Target(
        "workspace-file",
        _workspaces,
        (
            b'{"subscription_id": "1", "resource_group": "g", "workspace_name": "w", "management_endpoint": "https://x"}',
        ),
        _YAML,
        tree=True,
    ),
    Target(
        "user-files",
        _users,
        (
            b'{"trusted_hosts": ["a.example"], "allowed_variables": ["X"], "safe_projects": ["/p"]}',
            b'{"blobsync_trusted_links": 1, "projects": {"/p": [["data", "/home"]]}}',
        ),
        _YAML,
        tree=True,
    ),
    Target("saved-plan", _plans, (_plan_text(),), tree=True),
    Target("history-row", _rows, (_row_text(),), tree=True),
    Target(
        "queue-ticket",
        _tickets,
        (b'{"run_id": "me_1_0badcafe", "gpus": 1, "running": true, "held": ["0"], "claimed": false}',),
        tree=True,
    ),
    Target(
        "run-state",
        _run_state,
        (b'{"state": "Completed", "exit_code": 0, "started": 1.0, "ended": 2.0, "gpus": ["0"]}',),
        tree=True,
    ),
    Target("running-record", _running_records, (_running_text(),), (b"1e999", b"-1", b"[]"), tree=True),
    Target("range-records", _range_records, (_record_text(),), (b"\\u0000", b"\\ud800", b"1e999", b"-1"), tree=True),
)
