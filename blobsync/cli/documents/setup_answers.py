"""``data`` of the commands that set something up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blobsync.base.check_results import CheckStatus
from blobsync.cli.documents.kinds import (
    ANY_OBJECT,
    COUNT,
    FLAG,
    TEXT,
    Schema,
    by_name,
    choice,
    choice_of,
    described,
    list_of,
    maybe,
    record,
)

_AUTH = choice("sas", "key", "identity")
_CHECKS = list_of(record({"check": TEXT, "status": choice_of(CheckStatus), "detail": TEXT}))
_FINDING = record(
    {
        "cluster": described(TEXT, "empty: not of a single cluster"),
        "about": TEXT,
        "check": TEXT,
        "status": choice_of(CheckStatus),
        "detail": TEXT,
        "hint": maybe(TEXT),
    }
)
_CHECKED = record(
    {
        "file": TEXT,
        "ok": FLAG,
        "problems": list_of(TEXT),
        "warnings": list_of(TEXT),
        "submit_refuses": described(maybe(FLAG), "null: no cluster file, or a wrong one"),
        "folders": described(maybe(by_name(TEXT)), "folder entry -> its location"),
        "platform": maybe(TEXT),
    }
)
_WRITTEN = {"written": list_of(TEXT), "kept": described(list_of(TEXT), "files that existed and are unchanged")}
_PROGRAM = record({"path": TEXT, "version": TEXT, "origin": described(TEXT, "how it was found")})
_RUNNING = {
    "running": FLAG,
    "pid": COUNT,
    "port": COUNT,
    "endpoint": TEXT,
    "location": described(maybe(TEXT), "the folder of the blobs; null: in memory"),
    "version": described(TEXT, "Azurite's"),
}
_MOVED = described(list_of(TEXT), "account files whose port was changed")
_MADE = described(list_of(TEXT), "containers of account files that were created")
_STOPPED = record({"running": described({"const": False}, "no emulator runs")})
_COMPUTE = record(
    {
        "name": TEXT,
        **dict.fromkeys(("type", "vm_size", "vm_priority"), maybe(TEXT)),
        **dict.fromkeys(("min_nodes", "max_nodes", "nodes", "busy_nodes"), maybe(COUNT)),
        "state": maybe(TEXT),
        "idle_seconds": maybe(COUNT),
        "location": maybe(TEXT),
        "problems": list_of(TEXT),
    }
)
_COMPUTES_CHANGED = (
    record({"compute": described(maybe(_COMPUTE), "null: it is gone")}),
    record({"plan": described(TEXT, "the request that --dry-run does not send")}),
)
_PUBLISHED = record({"code_path": TEXT, "digest": TEXT, "at": described(TEXT, "UTC, when init published it")})
_CONVERTED = record({"files": list_of(TEXT), "command": list_of(TEXT), "notes": list_of(TEXT), "written": FLAG})


def setup_answers() -> Mapping[str, Sequence[Schema]]:
    """Command -> the schemas of its ``data``, of which one applies."""
    place = {"file": TEXT, "container": TEXT}
    links = list_of(record({"path": TEXT, "target": TEXT}))
    return {
        "config check": (record({"files": list_of(_CHECKED)}),),
        "config new": (
            record(_WRITTEN),
            record({**_WRITTEN, "auth": _AUTH, "login_stored": FLAG, "checks": _CHECKS}),
        ),
        "config trust-link": (record({"links": links, "trusted": described(FLAG, "false: no longer")}),),
        "config trust-state": (
            record(
                {
                    "folder": TEXT,
                    "id": TEXT,
                    "projects": list_of(TEXT),
                    "accepted": described(FLAG, "false: it was trusted before"),
                    "closed": described(list_of(TEXT), "what others could write to until now"),
                }
            ),
        ),
        "config trust-code": (record({"trusted": list_of(TEXT), "published": list_of(_PUBLISHED)}),),
        "config trust-docker": (record({"trusted": list_of(list_of(TEXT))}),),
        "login": (
            record({**place, "auth": _AUTH, "stored": FLAG, "checks": _CHECKS}),
            record({**place, "forgotten": described(FLAG, "false: nothing was stored")}),
            record({"logins": list_of(record({"container": TEXT, "auth": _AUTH}))}),
        ),
        **dict.fromkeys(("convert batchai", "convert philly"), (_CONVERTED,)),
        "compute ls": (record({"computes": list_of(_COMPUTE)}),),
        **dict.fromkeys(("compute create", "compute scale", "compute rm"), _COMPUTES_CHANGED),
        "doctor": (record({"findings": list_of(_FINDING)}),),
        **dict.fromkeys(("azcopy install", "azcopy path"), (_PROGRAM,)),
        "emulator start": (record({**_RUNNING, "already_running": FLAG, "written": _MOVED, "made": _MADE}),),
        "emulator stop": (record(_RUNNING), _STOPPED),
        "emulator status": (record(_RUNNING), _STOPPED),
        "schema": (record({"commands": list_of(TEXT), "schema": described(maybe(ANY_OBJECT), "of the command")}),),
    }
