"""``data`` of the commands for code and jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blobsync.backends.protocol import ClusterSummary, Holder
from blobsync.cli.documents.data_answers import BYTES, PATH, TRANSFERRED
from blobsync.cli.documents.kinds import (
    COUNT,
    FLAG,
    INTEGER,
    MOMENT,
    NUMBER,
    TEXT,
    Schema,
    by_name,
    choice,
    choice_of,
    described,
    list_of,
    maybe,
    of_fields,
    record,
)
from blobsync.cli.job_text import ACCEPTED
from blobsync.jobs.first_free import Candidate
from blobsync.jobspec.spec import State
from blobsync.tunnels.named import NamedTunnel

_STATUS = described(choice_of(State), "in ACT's words")
_SEEN = described(FLAG, "true: the time is when blobsync saw it; the state may be older")
_CHANGE = record({"time": maybe(MOMENT), "nodes": COUNT, "wanted": COUNT, "seen": _SEEN})
_STATES = list_of(record({"state": choice_of(State), "time": maybe(MOMENT), "until": maybe(MOMENT), "seen": _SEEN}))
_ELASTIC = record(
    {
        "min_nodes": COUNT,
        "max_nodes": COUNT,
        "nodes": described(maybe(COUNT), "that run"),
        "wanted": COUNT,
        "changes": list_of(_CHANGE),
    }
)
_JOB_FIELDS: Mapping[str, Schema] = {
    "job_id": TEXT,
    "status": _STATUS,
    "status_as_of": described(maybe(MOMENT), "when the cluster confirmed it"),
    "status_confirmed": described(FLAG, "false: the cluster could not be asked"),
    "exit_code": maybe(INTEGER),
    "reason": TEXT,
    "restarts": COUNT,
    "cluster": TEXT,
    "backend": TEXT,
    "native_id": described(TEXT, "the scheduler's own"),
    "url": maybe(TEXT),
    "name": TEXT,
    "command": list_of(TEXT),
    "nodes": COUNT,
    "processes": COUNT,
    "gpus": COUNT,
    "hosts": list_of(TEXT),
    "by": described(maybe(TEXT), "its user, by a record in the container; null: this project has a record of it"),
    "submitted": maybe(MOMENT),
    "started": maybe(MOMENT),
    "ended": maybe(MOMENT),
    "elapsed_seconds": maybe(NUMBER),
    "elapsedTime": described(maybe(NUMBER), "hours, as ACT has it"),
    "code_digest": maybe(TEXT),
    "git_commit": maybe(TEXT),
    "git_dirty": maybe(FLAG),
    "folders": by_name(record({"mode": TEXT, "url": TEXT})),
    "locks": described(by_name(TEXT), "the digests of its locked folders as they were known when it was submitted"),
    "resubmission_of": maybe(TEXT),
    "foreign": described(FLAG, "true: blobsync did not submit it"),
    "unread": described(list_of(TEXT), "what of a foreign job could not be read"),
    "ssh": described(maybe(TEXT), "the command that opens a shell in a waiting job"),
    "hold_seconds": maybe(COUNT),
    "after": described(maybe(TEXT), "the job that has to complete first"),
    "elastic": described(maybe(_ELASTIC), "null: the number of nodes is fixed"),
    "task_counts": described(maybe(by_name(COUNT)), "how many tasks are in each state; null: it has no tasks"),
    "states": described(_STATES, "its states over time"),
}
JOB = record(_JOB_FIELDS)
_CAUSE = record(
    {
        "code": TEXT,
        "meaning": TEXT,
        "retriable": described(FLAG, "whether a retry may help"),
        "log": TEXT,
        "line_number": COUNT,
        "line": TEXT,
        "count": described(COUNT, "log lines that show it"),
    }
)
_LOG_NAME = described(TEXT, "empty: there is none yet")
_LOGS = described(list_of(TEXT), "local files of the logs")
_BEHIND = described(maybe(COUNT), "how long a complete checkpoint has been on a node alone; null: none, or not known")
_LEFT = described(list_of(TEXT), "of an ended job: files outside of its folders, and checkpoints without a mark")
_TASK = record(
    {
        "index": COUNT,
        "parameters": by_name(TEXT),
        **{name: _JOB_FIELDS[name] for name in ("status", "exit_code", "restarts", "reason", "started", "ended")},
        "elapsed_seconds": maybe(NUMBER),
        "last_line": described(TEXT, "of its log; empty with --metric"),
        "metric": described(maybe(NUMBER), "with --metric FILE:FIELD"),
    }
)
_REPORT = record(
    {
        **_JOB_FIELDS,
        "logs": _LOGS,
        "causes": list_of(_CAUSE),
        "tail": list_of(TEXT),
        "checkpoint_seconds_behind": _BEHIND,
        "left_behind": _LEFT,
        "preparing": described(maybe(TEXT), "how far a node is before the command starts; null: it is ready"),
        "tasks": described(list_of(_TASK), "those of a sweep"),
    }
)
_LISTED = record({"jobs": list_of(JOB), "experiment": maybe(TEXT), "more": COUNT})
_ATTEMPT = record({**_JOB_FIELDS, "causes": list_of(_CAUSE), "next_job_id": maybe(TEXT)})

_ACCEPTED = {name: _JOB_FIELDS[name] for name in ACCEPTED}
_CHOICE = {"choice": described(list_of(record(of_fields(Candidate))), "with -c a,b: the clusters that were asked")}
_PLANNED = described(
    list_of(record({"index": COUNT, "parameters": by_name(TEXT), "command": list_of(TEXT)})), "of a sweep"
)
_SUBMITTED = (
    record(
        _ACCEPTED,
        _CHOICE
        | {"exit_code": described(maybe(INTEGER), "with --wait: the job's"), "reason": described(TEXT, "with --wait")},
    ),
    record({"plan": described(TEXT, "what would be submitted"), "job_id": TEXT}, _CHOICE | {"tasks": _PLANNED}),
)

_DECISION = record(
    {
        "path": PATH,
        "included": FLAG,
        "reason": TEXT,
        "pattern": maybe(TEXT),
        "file": described(maybe(TEXT), "the ignore file that has the pattern"),
        "line": maybe(COUNT),
        "size": maybe(BYTES),
    }
)
_GIT = record({"commit": maybe(TEXT), "dirty": FLAG, "uncommitted": list_of(TEXT)})
_CODE = {
    "code_digest": TEXT,
    "files": COUNT,
    "bytes": COUNT,
    "git": described(maybe(_GIT), "null: not in a git repository"),
    "left_out": list_of(_DECISION),
}
_PUBLISHED = record(
    {
        "status": choice("published", "unchanged", "would_publish"),
        **_CODE,
        "code_path": described(TEXT, "the blob that jobs unpack"),
        "kept": described(TEXT, "the blob that keeps this version"),
        "archive_bytes": maybe(BYTES),
        "seconds": NUMBER,
        "removed": described(list_of(TEXT), "older versions that were removed"),
        "notes": list_of(TEXT),
    }
)
_MEMBER = record({"path": PATH, "size": BYTES, "mode": choice("644", "755", "link"), "reason": maybe(TEXT)})

_TUNNEL = of_fields(NamedTunnel)
_TUNNEL_STATE = {
    **_TUNNEL,
    "open": FLAG,
    "open_at": described(maybe(COUNT), "the port of 127.0.0.1"),
    "restarts": COUNT,
    "problem": maybe(TEXT),
    "job_id": maybe(TEXT),
}
_SSH_CONFIG = {"ssh_config": list_of(TEXT)}


def _output_answers() -> Sequence[Schema]:
    file = record(
        {
            "output": described(TEXT, "the output's id"),
            "name": described(TEXT, "below that output"),
            "path": PATH,
            "size": BYTES,
            "last_modified": MOMENT,
            "on_disk": described(maybe(TEXT), "its path on this machine; null: in a container"),
            "url": described(maybe(TEXT), "with --url; a secret"),
        }
    )
    heading = {"job_id": TEXT, "status": _STATUS, "count": COUNT}
    copied = {"copied": described(COUNT, "files copied into the project from a linked folder")}
    listed = record({**heading, "files": list_of(file)}, {"bytes": COUNT, **copied})
    return listed, record({**heading, **TRANSFERRED}, copied)


def _tunnel_answers() -> Mapping[str, Sequence[Schema]]:
    opened = {"job_id": TEXT, "url": described(TEXT, "may hold a token"), "local_port": COUNT, "tunnel": FLAG}
    return {
        "tunnel job": (record(opened),),
        "tunnel add": (record({"tunnel": record(_TUNNEL), **_SSH_CONFIG}),),
        "tunnel ls": (record({"tunnels": list_of(record(_TUNNEL_STATE))}),),
        "tunnel open": (record({**_TUNNEL_STATE, **_SSH_CONFIG}),),
        "tunnel close": (record({"name": TEXT, "closed": described(FLAG, "false: it was not open")}),),
        "tunnel rm": (record({"name": TEXT}),),
    }


def job_answers() -> Mapping[str, Sequence[Schema]]:
    """Command -> the schemas of its ``data``, of which one applies."""
    jobs = record({"jobs": list_of(JOB)})
    return {
        "init": (
            *(_PUBLISHED, record(_CODE | {"list": list_of(_MEMBER)}), _DECISION),
            *(record(_CODE), record({**_CODE, **TRANSFERRED})),
        ),
        "initc": (_PUBLISHED,),
        "submit": _SUBMITTED,
        "q": (_LISTED, record({"jobs": list_of(_REPORT)})),
        **dict.fromkeys(("qq", "qr", "qf"), (_LISTED,)),
        "logs": (
            record({"job_id": TEXT, "log": _LOG_NAME, "lines": list_of(TEXT), "logs": _LOGS, "left_behind": _LEFT}),
        ),
        "outputs": _output_answers(),
        "a": (jobs,),
        "resubmit": (record(_ACCEPTED), record({"jobs": list_of(record(_ACCEPTED))})),
        "scale": (jobs,),
        "ssh": (record({"command": list_of(TEXT)}),),
        **_tunnel_answers(),
        "summary": (record({"cluster": TEXT, **of_fields(ClusterSummary)}),),
        "blame": (record({"cluster": TEXT, "holders": list_of(record(of_fields(Holder)))}),),
        "parse": (record({"job_id": TEXT, "causes": list_of(_CAUSE), "retriable": FLAG}),),
        "watch": (record({"attempts": list_of(_ATTEMPT)}),),
    }
