"""Queries of pages about jobs: pages of a list, logs in pieces, heartbeats, two jobs compared."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blobsync.base.errors import ArchiveError, ConfigError, JobNotFoundError, UsageError
from blobsync.code.packed_files import code_rules
from blobsync.code.publish import published_files, write_archive
from blobsync.code.snapshot import take_snapshot
from blobsync.config.loader import load_cluster
from blobsync.jobs.compare import ComparedCode, compare_files, compare_records
from blobsync.jobs.context import JobContext
from blobsync.jobs.history import History
from blobsync.jobs.logs import LINE_CHARS, PIECE_BYTES, FetchedLogs, inert_line, log_piece, search_logs
from blobsync.jobs.node_use import left_behind, node_of_log, node_use
from blobsync.jobs.queries import JobQueries
from blobsync.jobs.record import Home, JobFilter, JobRecord
from blobsync.jobs.timeline import spans_of
from blobsync.jobspec.spec import CodeRef, FolderLink, JobRef, LogFile, RunInfo, State, TaskInfo
from blobsync.jobspec.sweep import sweep
from blobsync.web.charts import use_charts
from tests.fakes.backend import FakeBackend
from tests.fakes.jobs import make_spec
from tests.fakes.store import MemoryStore
from tests.unit.project_files import NO_ENVIRON, ProjectFiles


def add(history: History, number: int, state: State, cluster: str = "eu", name: str = "", *argv: str) -> JobRecord:
    spec = make_spec(*argv, run_id=f"me_{1_000_000_000 + number}_{number:08x}", cluster=cluster, name=name)
    record = history.add(spec, JobRef(spec.run_id, "n", ""), "local", submitted=1_000_000_000.0 + number)
    return record if state is State.QUEUED else history.update(record, RunInfo(spec.run_id, state))


def test_jobs_are_chosen_by_state_cluster_and_words_and_come_in_pages(tmp_path: Path) -> None:
    history = History(tmp_path / "jobs.sqlite")
    for number in range(10):
        add(
            history,
            number,
            State.COMPLETED if number % 2 else State.FAILED,
            "eu",
            f"run {number}",
            "train.py",
            "--lr=1",
        )
    add(history, 10, State.QUEUED, "us", "", "other.py", "100%_'\"")

    def names(chosen: JobFilter, limit: int = 50, offset: int = 0) -> list[str]:
        return [record.spec.name for record in history.page(chosen, limit=limit, offset=offset)]

    assert names(JobFilter(), 3) == ["", "run 9", "run 8"]
    assert names(JobFilter(), 3, 9) == ["run 1", "run 0"]
    assert names(JobFilter((State.FAILED,))) == ["run 8", "run 6", "run 4", "run 2", "run 0"]
    assert names(JobFilter(cluster="us")) == [""]
    assert names(JobFilter(text="RUN  3")) == ["run 3"]
    assert names(JobFilter(text="train --lr")) == [f"run {number}" for number in range(9, -1, -1)]
    assert names(JobFilter(text="100%_'")) == [""] and names(JobFilter(text="10_%")) == []
    assert names(JobFilter(text="me_1000000004")) == ["run 4"]
    assert history.count_states(JobFilter()) == {State.FAILED: 5, State.COMPLETED: 5, State.QUEUED: 1}
    assert history.count_states(JobFilter((State.QUEUED,), "eu", "train")) == {State.FAILED: 5, State.COMPLETED: 5}
    assert history.clusters() == ("eu", "us")


def test_any_page_of_ten_thousand_jobs_is_found(tmp_path: Path) -> None:
    history = History(tmp_path / "jobs.sqlite")
    first = add(history, 0, State.COMPLETED)
    with history._file.writing() as database:
        row = tuple(database.execute("select * from jobs").fetchone())
        rows = []
        for number in range(1, 10_000):
            run_id = f"me_{1_000_000_000 + number}_{number:08x}"
            spec = replace(first.spec, run_id=run_id, name=f"run-{number}")
            rows.append((run_id, *row[1:5], spec.to_json(), *row[6:10], 1_000_000_000.0 + number, *row[11:]))
        database.executemany(f"insert into jobs values ({', '.join('?' * len(row))})", rows)
    assert [record.spec.name for record in history.page(JobFilter(), limit=2, offset=5000)] == ["run-4999", "run-4998"]
    assert history.count_states(JobFilter(text="run-77")) == {State.COMPLETED: 111}
    assert [record.spec.name for record in history.page(JobFilter(text="run-77"), limit=2)] == ["run-7799", "run-7798"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[32mgreen\x1b[0m text\n", "green text"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil.test\x1b\\link\x1b]8;;\x1b\\", "link"),
        (" 10%\r 50%\r100%\r\n", "100%"),
        ("a\x00b\x08c\x9bd\u202ee", "a\ufffdb\ufffdc\ufffdd\ufffde"),
        ("\x1b[2J\x1b[1;1Hx\x1b(By\x1bc", "xy"),
        ("tab\there", "tab\there"),
        ("<img src=x onerror=alert(1)>", "<img src=x onerror=alert(1)>"),
        ("x" * (LINE_CHARS + 1), "x" * LINE_CHARS + " ..."),
        ("\x1b[" * 50_000, None),
        ("\x1b]" + "x" * 100_000, None),
    ],
)
def test_a_line_of_a_log_moves_no_cursor(line: str, shown: str | None) -> None:
    found = inert_line(line)
    assert "\x1b" not in found
    assert shown is None or found == shown


def test_pieces_of_a_log_follow_each_other_without_a_gap(tmp_path: Path) -> None:
    path, fetched = tmp_path / "log.txt", FetchedLogs(tmp_path, ("log.txt",))
    path.write_bytes(b"one\ntwo\nhal")
    first = log_piece(fetched, "log.txt", None)
    assert (first.lines, first.end) == (("one", "two"), 8)
    assert log_piece(fetched, "log.txt", first.end).lines == ()
    path.write_bytes(b"one\ntwo\nhalf\n\nlast")
    second = log_piece(fetched, "log.txt", first.end)
    assert second.lines == ("half", "")
    last = log_piece(fetched, "log.txt", second.end, ended=True)
    assert (last.lines, last.end) == (("last",), 18)
    assert log_piece(fetched, "log.txt", 18, ended=True).lines == ()
    path.write_bytes(b"anew\n")
    assert log_piece(fetched, "log.txt", 18).lines == ("anew",)


def test_a_large_log_begins_with_its_last_lines_and_a_line_without_end_comes_in_parts(tmp_path: Path) -> None:
    path, fetched = tmp_path / "log.txt", FetchedLogs(tmp_path, ("log.txt",))
    path.write_text("".join(f"line {number}\n" for number in range(100_000)))
    piece = log_piece(fetched, "log.txt", None)
    assert piece.lines[-1] == "line 99999" and piece.lines[0].startswith("line ")
    assert piece.start > 0 and piece.end == path.stat().st_size
    path.write_bytes(b"x" * (2 * PIECE_BYTES + 5))
    parts = [log_piece(fetched, "log.txt", 0)]
    parts.append(log_piece(fetched, "log.txt", parts[-1].end))
    assert [part.end for part in parts] == [PIECE_BYTES, 2 * PIECE_BYTES]
    assert log_piece(fetched, "log.txt", 2 * PIECE_BYTES).lines == ()


def test_a_log_is_searched_and_only_one_of_the_job_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    for name, text in (
        ("system_logs/node_0.txt", "Error of node\n"),
        ("user_logs/std_log.txt", "a\n\x1b[1mERROR\x1b[0m b\n"),
    ):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    fetched = FetchedLogs(folder, ("system_logs/node_0.txt", "user_logs/std_log.txt"))
    found = search_logs(fetched, "error")
    assert [(one.log, one.number, one.line) for one in found] == [
        ("user_logs/std_log.txt", 2, "ERROR b"),
        ("system_logs/node_0.txt", 1, "Error of node"),
    ]
    assert len(search_logs(fetched, "error", limit=1)) == 1 and search_logs(fetched, "") == ()
    with pytest.raises(ConfigError, match="there is no log"):
        log_piece(fetched, "../../secret.txt")


def test_heartbeats_of_node_logs_become_samples() -> None:
    lines = [
        "2026-11-20T10:00:00Z node 0 is host, 8 CPUs\n",
        "2026-11-20T10:00:01Z heartbeat: disk 43 of 271 GB free, load 3.1, GPU 97%/30000MB 5%/12MB\n",
        "2026-11-20T10:30:01Z heartbeat: disk 40 of 271 GB free, load 0.0\n",
        "2026-13-40T10:30:01Z heartbeat: disk 40 of 271 GB free, load 0.0\n",
        "heartbeat: disk x\n",
    ]
    use = node_use(3, lines)
    assert use.node == 3
    assert [(one.disk_free, one.disk_total, one.load, one.gpus) for one in use.samples] == [
        (43, 271, 3.1, ((97, 30000), (5, 12))),
        (40, 271, 0.0, ()),
    ]
    assert use.samples[1].at - use.samples[0].at == 1800
    assert node_of_log("system_logs/node_12.txt") == 12 and node_of_log("task_1/attempt_2/system_logs/node_0.txt") == 0
    assert node_of_log("user_logs/std_log.txt") is None
    far = "data: 1,200 of 5,000 files, 1.2 GB of 4 GB"
    assert node_use(0, [f"{lines[2].rstrip()}, preparing {far}\n"]).samples[0].preparing == far
    many = node_use(0, [lines[1]] * 5000)
    assert 300 < len(many.samples) <= 400


def test_what_nodes_left_behind_is_told_of_an_ended_job(tmp_path: Path) -> None:
    said = "left behind: 2 files, 3 KB outside of the job's folders, removed with its code: runs/a, b"
    logs = {
        "system_logs/node_0.txt": f"2026-11-20T10:00:00Z {said}\nx left behind: no\n",
        "user_logs/std_log.txt": said,
    }
    for name, text in logs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    fetched = FetchedLogs(tmp_path, tuple(logs))
    record = add(History(tmp_path / "jobs.sqlite"), 1, State.COMPLETED)
    assert left_behind(record, fetched) == (said,)
    # Of checkpoints the last start counts, which may be in the same log.
    half, at = "left without a mark: 1 checkpoint: step-{}; blobsync checkpoints says why", "2026-11-20T10:00:00Z"
    for name, lines in {
        "attempt_2/system_logs/node_0.txt": [half.format(1)],
        "attempt_10/system_logs/node_0.txt": [half.format(2), "ready: /root", half.format(3), half.format(3)],
        "attempt_10/system_logs/node_1.txt": [half.format(4), "the files of an earlier start are here; only"],
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("".join(f"{at} {line}\n" for line in lines))
        logs[name] = ""
    assert left_behind(record, FetchedLogs(tmp_path, tuple(logs))) == (said, half.format(3))
    assert left_behind(replace(record, info=replace(record.info, state=State.RUNNING)), fetched) == ()


def test_heartbeats_become_charts_with_words_beside_them() -> None:
    beats = [f"2026-11-20T1{hour}:00:01Z heartbeat: disk 43 of 271 GB free, load {hour}.5" for hour in range(3)]
    drawn = use_charts([node_use(1, [*beats[:2], f"{beats[2]}, GPU 97%/30000MB 5%/12MB"])])
    assert drawn.count("<figure>") == 3 and drawn.count("<polyline") == 4
    assert "GPU use <b>97 % · 5 %</b>" in drawn and 'aria-label="Load: 2.5 at last, of 2.5"' in drawn
    assert "Free disk <b>43 of 271 GB</b>" in drawn
    assert use_charts([]).strip() == "" and "polyline" in use_charts([node_use(0, beats[:1])])


def test_a_jobs_state_over_time_is_what_its_cluster_told() -> None:
    spec = make_spec()
    record = JobRecord(spec, JobRef(spec.run_id, "n"), "local", RunInfo(spec.run_id, State.QUEUED), 100.0)

    def told(**info: object) -> list[tuple[str, float, float | None]]:
        changed = replace(record, info=replace(record.info, **info))  # type: ignore[arg-type]
        return [(span.state.value, span.start, span.end) for span in spans_of(changed)]

    assert told() == [("Queued", 100.0, None)]
    assert told(state=State.RUNNING, started=110.0) == [("Queued", 100.0, 110.0), ("Running", 110.0, None)]
    ended = [("Queued", 100.0, 110.0), ("Running", 110.0, 150.0), ("Failed", 150.0, None)]
    assert told(state=State.FAILED, started=110.0, ended=150.0) == ended
    assert told(state=State.CANCELED, ended=120.0) == [("Queued", 100.0, 120.0), ("Canceled", 120.0, None)]
    assert told(state=State.FAILED) == [("Failed", 100.0, None)]


def test_two_jobs_are_compared_without_their_secrets() -> None:
    code = CodeRef("https://a/c", "code.zip.d/aa.zip", "aa" * 32, git_commit="c1")
    env = {"A": "1", "C": "both", "PIN_TOKEN": "left"}
    options = {"job_file": '{"env": {"A": "1"}}', "sealed_marks": True, "on_cpu": True, "lineage": "me_2_0badcafe"}
    left = make_spec("python", "train.py", env=env, secret_env=("KEY",), code=code, options=options)
    right = make_spec(
        *("python", "train.py", "--lr=2"),
        run_id="me_2_0badcafe",
        env={"A": "2", "B": "new", "C": "both", "PIN_TOKEN": "right"},
        secret_env=("KEY",),
        code=replace(code, digest="bb" * 32),
        folders=(FolderLink("data", "https://a/c", "d", "mount"),),
    )
    homes = [
        Home("local", {}, "f", {}, {"retries": n, "env": {"A": n}, "docker": {"image": "i", "password": "hunter22"}})
        for n in (1, 2)
    ]
    one, other = [
        JobRecord(spec, JobRef(spec.run_id, "n"), "local", RunInfo(spec.run_id, State.FAILED, 1), 1.0, home=home)
        for spec, home in zip((left, right), homes, strict=True)
    ]
    found = compare_records(one, other, compare_files({"a": "1", "b": "1", "c": "1"}, {"b": "2", "c": "1", "d": "1"}))
    facts = [(name, fact) for name, group in found.groups.items() for fact in group]
    differ = {(name, fact.name): (fact.left, fact.right) for name, fact in facts if fact.differs}
    assert differ == {
        ("Job", "command"): ("python train.py", "python train.py --lr=2"),
        ("Code", "digest"): ("aa" * 32, "bb" * 32),
        ("Environment", "A"): ("set", "set, to another value"),
        ("Environment", "B"): ("", "set"),
        ("Folders", "data"): ("", "mount https://a/c/d"),
        ("Cluster file", "retries"): ("1", "2"),
    }
    assert found.files == ComparedCode(added=("d",), removed=("a",), changed=("b",))
    texts = [text for _, fact in facts for text in (fact.left, fact.right)]
    assert not [text for text in texts if "hunter22" in text or text in ("left", "right", "new", "both")]
    assert [(fact.left, fact.right) for name, fact in facts if fact.name == "C"] == [("set", "set")]


def test_the_code_of_two_jobs_is_compared_file_by_file_where_it_is_kept(tmp_path: Path) -> None:
    files = ProjectFiles(tmp_path)
    entry = "{azure_blob_config_file: aux_data/configs/acct.yaml, path: me/code.zip}"
    files.cluster(f"platform: local\nconfig_param: {{code_path: {entry}}}\n", "here")
    cluster = load_cluster(tmp_path, "here", environ=NO_ENVIRON)
    assert cluster.code
    url, store = str(cluster.code.account.container), MemoryStore()
    environ = {**os.environ, "HOME": str(tmp_path / "home")}
    context = JobContext(tmp_path, environ, cluster, backends={"here": FakeBackend()}, stores={url: store})
    jobs: list[JobRecord] = []
    for number, text in enumerate(("print(1)\n", "print(2)\n")):
        files.write("src/a.py", text)
        snapshot = take_snapshot(code_rules(cluster), tmp_path / f"cache{number}.json")
        out = io.BytesIO()
        write_archive(snapshot, None, out)
        blob = f"me/code.zip.d/{snapshot.digest}.zip"
        store.add(blob, out.getvalue())
        code = CodeRef(url, blob, snapshot.digest)
        spec = make_spec(run_id=f"me_{number}_0badcafe", cluster="here", code=code)
        jobs.append(context.history.add(spec, JobRef(spec.run_id, "n"), "local"))
    queries = JobQueries(context)
    assert queries.compare(jobs[0], jobs[1]).files == ComparedCode(changed=("src/a.py",))
    assert queries.compare(jobs[0], jobs[0]).files == ComparedCode()
    store.add(jobs[1].spec.code.blob if jobs[1].spec.code else "", b"not ours")
    assert "has no list of its files" in queries.compare(jobs[0], jobs[1]).files.problem
    without = replace(jobs[0], spec=replace(jobs[0].spec, code=None))
    assert "has no list" in queries.compare(without, jobs[1]).files.problem


def test_the_files_of_an_archive_are_read_from_its_beginning(tmp_path: Path) -> None:
    files = ProjectFiles(tmp_path)
    files.cluster("platform: local\n", "here")
    files.write("src/a.py", "print(1)\n")
    files.write("b.txt", "b\n")
    snapshot = take_snapshot(code_rules(load_cluster(tmp_path, "here", environ=NO_ENVIRON)), tmp_path / "cache.json")
    out = io.BytesIO()
    write_archive(snapshot, None, out)
    store = MemoryStore()
    store.add("code.zip", out.getvalue())
    found = published_files(store, "code.zip", snapshot.digest)
    assert found == {file.path: f"{file.file.mode} {file.sha256}" for file in snapshot.files}
    assert {"src/a.py", "b.txt"} <= found.keys()
    with pytest.raises(ArchiveError, match="does not match its digest"):
        published_files(store, "code.zip", "0" * 64)
    for number, body in enumerate(
        (b"", b"PK", out.getvalue()[:200], b"PK\x03\x04" + b"\0" * 100, out.getvalue()[100:])
    ):
        store.add(f"bad{number}.zip", body)
        with pytest.raises(ArchiveError, match="has no list of its files"):
            published_files(store, f"bad{number}.zip", snapshot.digest)


def test_a_task_is_named_behind_its_job(tmp_path: Path) -> None:
    files = ProjectFiles(tmp_path)
    files.cluster("platform: local\n")
    context = JobContext(tmp_path, NO_ENVIRON, backends={"eu": FakeBackend()})
    plain, spec = (
        add(context.history, 1, State.COMPLETED),
        make_spec("x", cluster="eu", tasks=sweep(["lr=1,2"]).only([1])),
    )
    context.history.add(spec, JobRef(spec.run_id, "n", ""), "local")
    jobs = JobQueries(context)
    for name in ("0badcafe/1", f"assets/{spec.run_id}/1", f"{spec.run_id}/1"):
        record, task = jobs.find_task(name)
        assert (record.run_id, task) == (spec.run_id, 1)
    assert jobs.find_task(f"assets/{spec.run_id}")[1] is None and jobs.find_task("0badcafe")[1] is None
    with pytest.raises(UsageError, match="has no tasks"):
        jobs.find_task(f"{plain.run_id}/1")
    with pytest.raises(JobNotFoundError, match="has no task 0; its last one is 1"):
        jobs.find_task("0badcafe/0")


class Tasks(FakeBackend):
    """All tasks fail, and say so."""

    def logs(self, ref: JobRef, tasks: Collection[int] | None = None) -> Sequence[LogFile]:
        asked = range(30) if tasks is None else tasks
        return [LogFile(f"task_{number}/user_logs/std_log.txt", None, f"{number}") for number in asked]

    def read_log(self, log: LogFile, start: int, end: int | None) -> bytes:
        return f"No space left on device {log.handle}\n".encode()[start:end]


def test_of_a_sweep_the_logs_of_some_failed_tasks_are_searched_or_that_of_one(tmp_path: Path) -> None:
    notes: list[str] = []
    ProjectFiles(tmp_path).cluster("platform: local\n", "eu")
    context = JobContext(tmp_path, NO_ENVIRON, backends={"eu": Tasks()}, note=notes.append)
    spec = make_spec("x", cluster="eu", tasks=sweep(["n=0..29"]))
    record = context.history.add(spec, JobRef(spec.run_id, "n", ""), "local")
    tasks = tuple(TaskInfo(number, State.FAILED if number else State.COMPLETED, 1) for number in range(30))
    context.history.update(record, RunInfo(spec.run_id, State.FAILED, 1, tasks=tasks))
    jobs = JobQueries(context)
    (found,) = jobs.diagnose(spec.run_id).causes
    assert (found.cause.code, found.count, found.log) == ("NoSpace", 20, "task_1/user_logs/std_log.txt")
    assert notes == ["the logs of 20 of the 29 failed tasks are read"]
    (found,) = jobs.diagnose(spec.run_id, task=29).causes
    assert (found.count, found.line) == (1, "No space left on device 29")
