"""The tables of the databases in a project's state folder; ``database`` says what happens to a damaged one.

``jobs.sqlite`` has the jobs and the transfers: nothing else knows them. ``index.sqlite`` saves comparing files by their
content (``index``). ``unfinished.sqlite`` has what runs, and how far what was interrupted had come: it may be lost. The
nodes of jobs have files with the tables of the last two as well.
"""

from __future__ import annotations

from pathlib import Path

from blobsync.base.errors import JobError
from blobsync.local import migration
from blobsync.local.database import Database, Layout

JOBS = Layout(
    8,
    """
create table if not exists jobs (
    run_id text primary key,
    native_id text not null,
    place text not null,
    backend text not null,
    cluster text not null,
    spec text not null,
    state text not null,
    exit_code integer,
    restarts integer not null,
    reason text not null,
    submitted real not null,
    started real,
    ended real,
    nodes text not null,
    cancel_asked integer not null,
    successor_of text not null,
    confirmed real not null default 0,
    home text not null default ''
);
create index if not exists by_cluster on jobs (cluster, submitted);
create index if not exists by_time on jobs (submitted);
create table if not exists node_changes (
    run_id text not null,
    at real not null,
    running integer not null,
    wanted integer not null,
    seen integer not null default 0,
    primary key (run_id, at)
);
create table if not exists state_changes (
    run_id text not null,
    at real not null,
    state text not null,
    restarts integer not null,
    seen integer not null,
    primary key (run_id, at, state)
);
-- When the secrets of an ended job were last to be removed from its cluster, and whether they are gone.
create table if not exists removed_secrets (run_id text primary key, tried real not null, gone integer not null);
-- The last known states of an array's tasks, as lists in JSON.
create table if not exists tasks (run_id text primary key, states text not null);
-- What was last written of a job into its container: when, its state, and a digest, which is empty if that failed.
create table if not exists shared_records (run_id text primary key, tried real not null, state text, digest text);
create table if not exists transfers (id text primary key, began real not null, entry text not null);
create index if not exists transfers_by_time on transfers (began)
""",
    (migration.VERSION, 6, 7),
    migration.TRANSFERS,
    migration.take_over_transfers,
)

UNFINISHED = Layout(
    2,
    """
-- Uploads, downloads and fetches that are not finished, and what of each is done (resume_records).
create table if not exists unfinished (
    id integer primary key, kind text not null, name text not null, head text not null, at real not null,
    unique (kind, name));
create table if not exists pieces (
    work integer not null, key not null, size integer not null, mark, primary key (work, key)) without rowid;
create table if not exists committed (blob text primary key, etag text not null) without rowid;
-- The MD5 of a version that was committed, and the SHA-256 of each of its blocks.
create table if not exists digests (blob text primary key, etag text not null, digests blob not null) without rowid;
-- Of transfers and keepers at work, and of transfers that have begun: what they said last, as JSON.
create table if not exists running (
    kind text not null, id text not null, record text not null, stop integer not null default 0,
    primary key (kind, id)) without rowid
""",
    extends=(1,),
    earlier=migration.UNFINISHED,
    take_over=migration.take_over_unfinished,
)


def jobs_database(file: Path) -> Database:
    """The jobs in ``file``. It raises ``JobError`` if the file cannot be used."""
    return Database(file, JOBS, "the history", "running jobs are not affected", error=JobError)


def has_jobs(file: Path) -> bool:
    """Whether ``file`` has any job: most projects have none. Raises ``JobError`` as :func:`jobs_database` does."""
    if not file.exists():
        return False
    with jobs_database(file).reading() as database:
        return bool(database.execute("select exists (select 1 from jobs)").fetchone()[0])
