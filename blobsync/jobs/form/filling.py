"""A form filled from a recorded job (Load from history): submitted as it is, it asks for the same again. Pure.

What ``-p`` and ``-n`` changed is in the job's home, without credentials; variables are those of the job's specification
that the cluster file of today does not set to the same. Values of secret variables are nowhere, and stay out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blobsync.config.loader import SHOWN, apply_overrides
from blobsync.config.model import Cluster
from blobsync.config.typed import FOLDER_SUFFIX
from blobsync.config.yaml_lines import Document
from blobsync.jobs.form.fields import INCLUDE, MODE, FieldEntry, FormField, fields_of, key_on
from blobsync.jobs.form.filled import JobForm, param_text, text_of_command
from blobsync.jobs.record import JobRecord
from blobsync.jobspec.describe import SLURM_OPTIONS
from blobsync.jobspec.spec import JobSpec


@dataclass(frozen=True, slots=True)
class FilledForm:
    """A form, and a sentence for each thing that it could not be filled with."""

    form: JobForm
    notes: tuple[str, ...] = ()


def form_of_job(record: JobRecord, known: Cluster | None) -> FilledForm:
    """The form for a recorded job; ``known`` is its cluster as its file is today, None where that cannot be used."""
    spec, home = record.spec, record.home
    param: dict[str, Any] = dict(apply_overrides(Document(SHOWN, {}, {}), home.overrides).values if home else {})
    values = {"command": text_of_command(spec.argv), "name": spec.name}
    gpus = param.pop("num_gpu", None)
    values["num_gpu"] = "" if gpus is None else str(gpus)
    values |= _size(spec)
    values |= {name: str(spec.options[name]) for name in SLURM_OPTIONS if spec.options.get(name)}
    if known is not None:
        param.pop("env", None)
        values["env"] = _variables(spec, known)
        for each in fields_of(known.platform):
            if each.key and each.key not in ("num_gpu", "env"):
                values[each.name] = _take(param, each, known)
        values |= _folders(param)
    values["other"] = param_text(param) if param else ""
    notes = [f"{name}: its value is not recorded" for name in spec.secret_env if known is None or name not in known.env]
    if home is None:
        notes.append("an older blobsync recorded this job: what -p changed is not known")
    return FilledForm(JobForm(spec.cluster, {name: text for name, text in values.items() if text}), tuple(notes))


def _size(spec: JobSpec) -> dict[str, str]:
    elastic = f"{spec.min_nodes}:{spec.max_nodes}" if spec.is_elastic else ""
    nodes = str(spec.nodes) if spec.nodes > 1 or elastic else ""
    each = max(spec.procs_per_node, spec.workers_per_node)
    return {"elastic": elastic, "nodes": nodes, "single": "yes" if each == 1 and spec.gpus_per_node > 1 else ""}


def _variables(spec: JobSpec, known: Cluster) -> str:
    """Those that the cluster file of today would not give the job."""
    own = {name: value for name, value in spec.env.items() if known.env.get(name) != value}
    return "\n".join(f"{name}={value}" for name, value in own.items() if "\n" not in value)


def _take(param: dict[str, Any], each: FormField, known: Cluster) -> str:
    """The text of a field; its key is then no longer one of the others."""
    *around, last = key_on(each, known).split(".")
    here: Any = param
    for part in around:
        here = here.get(part) if isinstance(here, Mapping) else None
    value = here.get(last) if isinstance(here, dict) else None
    if isinstance(value, list) and all(isinstance(line, str) and "\n" not in line for line in value):
        value = "\n".join(value)
    if isinstance(value, bool) != (each.entry is FieldEntry.FLAG) or not isinstance(value, (str, int)):
        return ""
    assert isinstance(here, dict)
    del here[last]
    if around and not here:
        param.pop(around[0])
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _folders(param: dict[str, Any]) -> dict[str, str]:
    """The modes and parts of folder entries; an entry that says more stays among the other keys."""
    found: dict[str, str] = {}
    entries = param.get("config_param")
    for key, entry in list(entries.items()) if isinstance(entries, dict) else ():
        name = key.removesuffix(FOLDER_SUFFIX)
        if not isinstance(entry, Mapping) or not entry or entry.keys() - {"mode", "include"}:
            continue
        mode, parts = entry.get("mode", ""), entry.get("include", [])
        if isinstance(mode, str) and isinstance(parts, list) and all(isinstance(part, str) for part in parts):
            found |= {f"{MODE}{name}": mode, f"{INCLUDE}{name}": "; ".join(parts)}
            del param["config_param"][key]
    if entries == {}:
        del param["config_param"]
    return found
