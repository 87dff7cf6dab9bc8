"""A filled form: its checks, the submission that it describes, and a form filled from a recorded job. Pure.

``-p`` is written as JSON, which is YAML too. A command is read as words where a shell would read the same words from
them, quoted its way; anything else is a line for the shell.

A form from a recorded job (Load from history) asks for the same again when it is submitted as it is. What ``-p`` and
``-n`` changed is in the job's home, without credentials; variables are those of the job's specification that the
cluster file of today does not set to the same. Values of secret variables are not recorded, and stay out.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from blobsync.base.errors import BlobsyncError, ConfigError, UsageError
from blobsync.base.records import dataclass
from blobsync.config.known_keys import FOLDER_SUFFIX, Kind
from blobsync.config.loader import SHOWN, ClusterFile, apply_overrides, find_cluster_file, load_cluster, parse_overrides
from blobsync.config.model import Cluster, value_at
from blobsync.config.trusted_code import demand_digest
from blobsync.config.yaml_document import Document
from blobsync.jobs.form.fields import (
    BY_NAME,
    FIELDS,
    FOLDER_FIELD_BY_KEY,
    FOLDER_FIELDS,
    FieldEntry,
    FormField,
    fields_of,
    folder_field,
    key_on,
    known_key,
)
from blobsync.jobs.preflight import refusals
from blobsync.jobs.record import JobRecord
from blobsync.jobspec.make_spec import SubmitRequest, demand_command, elastic_bounds, shape_of, tasks_of, time_limit
from blobsync.jobspec.spec import JobRef, JobSpec, TaskArray
from blobsync.jobspec.submit_options import SLURM_OPTIONS, SUBMIT_OPTIONS, SubmitKeywords
from blobsync.jobspec.sweep import array_text, sweep
from blobsync.local.ignore_patterns import parse_list

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
# JSON may hold them as they are, YAML not.
_NOT_IN_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
# Longer texts are no command, and no variables.
MOST_CHARS = 100_000


@dataclass(frozen=True, slots=True)
class JobForm:
    """The input: the cluster, and the text of each field by its name; fields that are missing are empty.

    A folder entry has fields of its own, such as ``folder_mode:NAME``.
    """

    cluster: str
    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    def text(self, name: str) -> str:
        """The text of a field, without blanks around it and with plain line ends."""
        return self.values.get(name, "").replace("\r\n", "\n").strip()


@dataclass(frozen=True, slots=True)
class FieldMistake:
    """What is wrong with a field, in the words of the command line. ``cluster`` is the field of the file's mistakes."""

    field: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, name: str, error: BlobsyncError) -> FieldMistake:
        """An error as the mistake of a field; where it is in ``-p``, the field says that already."""
        message = error.message
        if isinstance(error, ConfigError) and error.file == SHOWN and name not in ("other", "cluster"):
            message = error.detail
        return cls(name, message, error.hint or "")


@dataclass(frozen=True, slots=True)
class AskedJob:
    """A submission as the command line takes it: ``-c``, ``-n``, ``-p``, the options of ``submit``, and the command."""

    cluster: str
    argv: tuple[str, ...]
    num_gpu: int | None = None
    param: Mapping[str, Any] = field(default_factory=dict, repr=False)
    keywords: SubmitKeywords = field(default_factory=SubmitKeywords)

    @property
    def overrides(self) -> Mapping[str, Any]:
        """What ``-p`` and ``-n`` change in the cluster file."""
        return {**self.param, "num_gpu": self.num_gpu} if self.num_gpu is not None else self.param

    @property
    def request(self) -> SubmitRequest:
        """The request for ``describe``; of a job that comes first, only that there is one is known."""
        after = self.keywords.get("after")
        request = SubmitRequest.of(self.argv, self.keywords)
        if given := self.keywords.get("sweep"):
            request = replace(request, tasks=sweep(given, zipped=bool(self.keywords.get("zip"))))
        return replace(request, after=JobRef(after, "1", "")) if after else request

    @property
    def command_line(self) -> tuple[str, ...]:
        """The words of the same command in a terminal."""
        words = ["blobsync", "-c", self.cluster]
        words += ["-n", str(self.num_gpu)] if self.num_gpu is not None else []
        words += ["-p", param_text(self.param)] if self.param else []
        words.append("submit")
        for name, value in self.keywords.items():
            one = SUBMIT_OPTIONS[name]
            if one.is_flag:
                words += [one.flag] if value is one.about.sets else []
            elif isinstance(value, list):
                words += [word for each in value for word in (one.flag, str(each))]
            elif value not in (None, ""):
                words += [one.flag, str(value)]
        return (*words, *(["--"] if self.argv[:1] and self.argv[0].startswith("-") else []), *self.argv)


def param_text(param: Mapping[str, Any]) -> str:
    """The value of ``-p`` for these overrides."""
    text = json.dumps(param, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def words_of(command: str) -> tuple[str, ...]:
    """The words of a command, or one line for the shell where it holds more than words; nothing for an empty text."""
    try:
        words = shlex.split(command)
    except ValueError:
        return (command,)
    return tuple(words) if shlex.join(words) == command else (command,)


def text_of_command(argv: Sequence[str]) -> str:
    """The inverse of :func:`words_of`."""
    line = argv[0] if len(argv) == 1 else ""
    return line if words_of(line) == tuple(argv) and line == line.strip() else shlex.join(argv)


def read_form(form: JobForm, known: Cluster) -> tuple[AskedJob, tuple[FieldMistake, ...]]:
    """The submission, as far as the fields can be read, and what cannot be. ``known`` is the cluster without changes.

    Fields that the cluster's platform does not have are mistakes of the cluster: the page does not show them.
    """
    reader = _Reader(form, known)
    return reader.submission(), tuple(reader.mistakes)


class _Reader:
    def __init__(self, form: JobForm, known: Cluster) -> None:
        self._form = form
        self._known = known
        filled = [each for each in FIELDS if form.text(each.name)]
        self._fields = [each for each in filled if known.platform in each.platforms]
        self.mistakes: list[FieldMistake] = []
        for each in filled:
            if each not in self._fields:
                self._wrong("cluster", f"{each.label}: jobs on {known.platform} do not have it: leave it empty")

    def submission(self) -> AskedJob:
        param = self._other()
        for each in self._fields:
            if each.key and each.key != "num_gpu":
                self._put(param, each)
        for name, key in self._entries():
            self._put_folder(param, name, key)
        gpus = self._whole("num_gpu")
        command = self._form.text("command")
        argv = words_of(command) if command else ()
        if "\0" in command or len(command) > MOST_CHARS:
            self._wrong("command", f"a command has no NUL characters, and at most {MOST_CHARS:,} others")
            argv = ()
        return AskedJob(self._form.cluster, argv, gpus, param, self._keywords())

    def _keywords(self) -> SubmitKeywords:
        found: dict[str, Any] = {}
        for each in self._fields:
            if each.option in ("", "cmd"):
                continue
            text = self._form.text(each.name)
            if each.entry is FieldEntry.FLAG:
                found |= {each.option: SUBMIT_OPTIONS[each.option].about.sets} if text == "yes" else {}
            elif each.entry is FieldEntry.NUMBER:
                found[each.option] = self._whole(each.name)
            elif each.entry is FieldEntry.LINES:
                found[each.option] = self._sweep(text)
            else:
                found[each.option] = text
        words: Any = {name: value for name, value in found.items() if value is not None}
        keywords: SubmitKeywords = words
        return keywords

    def _sweep(self, text: str) -> list[str] | None:
        words = [line.strip() for line in text.split("\n") if line.strip()]
        try:
            sweep(words, zipped=self._form.text("zip") == "yes")
        except UsageError as error:
            self.mistakes.append(FieldMistake.of("sweep", error))
            return None
        return words

    def _whole(self, name: str) -> int | None:
        text = self._form.text(name)
        if not text:
            return None
        if not _WHOLE.fullmatch(text):
            self._wrong(name, f"{text!a} is not a whole number")
            return None
        if name == "nodes" and int(text) < 1:
            self._wrong(name, f"nodes {text}: at least 1")
            return None
        return int(text)

    def _other(self) -> dict[str, Any]:
        text = self._form.text("other")
        try:
            given = apply_overrides(Document(SHOWN, {}, {}), parse_overrides(text) if text else {}).values
        except ConfigError as error:
            self.mistakes.append(FieldMistake.of("other", error))
            return {}
        return dict(given)

    def _put(self, param: dict[str, Any], each: FormField) -> None:
        text = self._form.text(each.name)
        value: Any
        key = key_on(each, self._known)
        if each.entry is FieldEntry.PAIRS:
            value = self._pairs(each.name, text)
        elif each.entry is FieldEntry.FLAG:
            value = {"yes": True, "no": False}.get(text, text)
        else:
            value = _value_of(text, each, key)
        self._add(param, key.split("."), value)

    def _add(self, param: dict[str, Any], path: Sequence[str], value: Any) -> None:
        here: Any = param
        for part in path[:-1]:
            here = here.setdefault(part, {}) if isinstance(here, dict) else None
        last = path[-1]
        if not isinstance(here, dict) or not (last not in here or isinstance(value, dict)):
            self._wrong("other", f"{'.'.join(path)} has a field of its own, which is filled in too")
            return
        inside = here.setdefault(last, {}) if isinstance(value, dict) else None
        if isinstance(inside, dict):
            inside |= value
        else:
            here[last] = value

    def _pairs(self, name: str, text: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, line in enumerate(text.split("\n"), 1):
            variable, sign, value = line.partition("=")
            if not line.strip():
                continue
            # A '$' would divide a key of -p.
            if not sign or not variable.strip() or "$" in variable:
                self._wrong(name, f"line {number}: not NAME=VALUE")
            else:
                found[variable.strip()] = value.rstrip("\r")
        return found

    def _entries(self) -> list[tuple[str, str]]:
        """The folder entries that a field says something of."""
        named = {entry.prefix: entry.key for entry in self._known.folders}
        return [
            (prefix, key)
            for prefix, key in named.items()
            if any(self._form.text(folder_field(each, prefix)) for each in FOLDER_FIELDS)
        ]

    def _put_folder(self, param: dict[str, Any], prefix: str, key: str) -> None:
        given: dict[str, Any] = {}
        for name, each in FOLDER_FIELD_BY_KEY.items():
            if text := self._form.text(folder_field(each, prefix)):
                given[name] = _value_of(text, each, each.key)
        entries = self._known.values.get("config_param")
        written = entries.get(key) if isinstance(entries, Mapping) else None
        if isinstance(written, str):
            # A bare path has no room for more.
            given["path"] = written
            entry = self._known.folder(prefix)
            given |= {"datastore_name": entry.datastore_name} if entry and entry.datastore_name else {}
        self._add(param, ("config_param", key), given)

    def _wrong(self, name: str, message: str) -> None:
        self.mistakes.append(FieldMistake(name, message))


def _value_of(text: str, each: FormField, key: str) -> Any:
    """What a text in this field sets its key to; one that is no number stays a text, which the check refuses."""
    kind = known_key(key).kind
    if kind is Kind.TEXTS:
        between = r"\n" if each.entry is FieldEntry.LINES else r"[;\n]"
        return [part.strip() for part in re.split(between, text) if part.strip()]
    return int(text) if kind is Kind.WHOLE and _WHOLE.fullmatch(text) else text


def field_of_key(key: str) -> str:
    """The field that a mistake in this key of the cluster file belongs to; empty if none sets it."""
    parts = key.split(".")
    if parts[0] == "config_param" and len(parts) > 1 and parts[1].endswith(FOLDER_SUFFIX):
        each = FOLDER_FIELD_BY_KEY.get(parts[2] if parts[2:] else "", FOLDER_FIELD_BY_KEY["mode"])
        return folder_field(each, parts[1].removesuffix(FOLDER_SUFFIX))
    if parts[0] == "slurm" and BY_NAME.get(parts[-1]) and BY_NAME[parts[-1]].only == ("slurm",):
        return parts[-1]
    key = _ALSO.get(key, key)
    for each in BY_NAME.values():
        if each.key and (key == each.key or key.startswith(f"{each.key}.")):
            return each.name
    return ""


# Keys that are read where a field's own is not given, or mean the same.
_ALSO = {
    "singularity_instance_type": "instance_type",
    "queue_settings.job_tier": "sla_tier",
    "docker": "docker.image",
    "kubernetes.image": "docker.image",
    "singularity_sla_tier": "sla_tier",
}


@dataclass(frozen=True, slots=True)
class CheckedForm:
    """A form, its mistakes, and what ``config check`` warns of.

    ``known`` is the cluster without the form's changes, None where its file cannot be used; ``asked`` is None
    where there is a mistake. ``changes`` are those of the cluster file, as far as they could be read.
    """

    form: JobForm
    known: Cluster | None
    asked: AskedJob | None = field(default=None, repr=False)
    mistakes: tuple[FieldMistake, ...] = ()
    warnings: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict, repr=False)


def check_form(root: Path, form: JobForm, environ: Mapping[str, str]) -> CheckedForm:
    """Read a form and find all its mistakes; never raises for them. Starts nothing and uses no network."""
    try:
        known = load_cluster(root, form.cluster, environ=environ)
    except BlobsyncError as error:
        return CheckedForm(form, None, None, (FieldMistake.of("cluster", error),))
    asked, mistakes = read_form(form, known)
    found = list(mistakes)
    try:
        loaded = ClusterFile(root, find_cluster_file(root, form.cluster, environ), asked.overrides, environ)
    except BlobsyncError as error:
        return CheckedForm(form, known, None, (*found, FieldMistake.of("other", error)), changes=asked.overrides)
    found += [_placed(problem) for problem in loaded.problems]
    if loaded.cluster is not None:
        found += _refused(loaded.cluster, asked, environ)
    distinct = tuple({(one.field, one.message): one for one in found}.values())
    warnings = (*loaded.warnings, *loaded.job_notes)
    return CheckedForm(form, known, None if distinct else asked, distinct, warnings, asked.overrides)


def _refused(cluster: Cluster, asked: AskedJob, environ: Mapping[str, str]) -> Iterator[FieldMistake]:
    request = asked.request
    seen: set[str] = set()
    for name, error in _each(cluster, asked):
        seen.add(error.message)
        if name == "command":
            # A command that cannot run must not hide the rest.
            request = replace(request, argv=("true",))
        yield FieldMistake.of(name, error)
    for error in refusals(cluster, environ, request):
        if error.message not in seen:
            yield _placed(error)


def _each(cluster: Cluster, asked: AskedJob) -> Iterator[tuple[str, BlobsyncError]]:
    """What the parts of the request say by themselves: one mistake must not hide another."""
    request, digest = asked.request, asked.keywords.get("code")
    # Patterns of the file alone refuse nothing: the job may run the code of the last init.
    typed = cluster.ignore if "ignore" in asked.param else ()
    size = "nodes" if request.nodes and asked.num_gpu is None else "num_gpu"
    parts: tuple[tuple[str, Callable[[], object]], ...] = (
        ("command", lambda: demand_command(request)),
        ("command" if request.tasks else "parallel", lambda: tasks_of(cluster, request)),
        ("elastic" if request.elastic else "", lambda: elastic_bounds(cluster, request)),
        (size, lambda: shape_of(cluster, request)),
        ("timeout", lambda: time_limit(cluster)),
        ("code", lambda: digest and demand_digest(digest, "--code")),
        ("ignore", lambda: parse_list(typed, "ignore")),
    )
    seen: set[str] = set()
    for name, look in parts:
        try:
            with cluster.naming_lines():
                look()
        except BlobsyncError as error:
            # The size of an elastic job depends on its bounds.
            if error.message not in seen:
                yield name if not isinstance(error, ConfigError) and name else _field(error), error
            seen.add(error.message)


def _placed(error: BlobsyncError) -> FieldMistake:
    return FieldMistake.of(_field(error), error)


def _field(error: BlobsyncError) -> str:
    """The field of an error: that of its key; those of the file itself belong to the cluster."""
    key = error.key if isinstance(error, ConfigError) else None
    return (field_of_key(key) if key else "") or "cluster"


@dataclass(frozen=True, slots=True)
class FilledForm:
    """A form, and a note for each value that could not be filled in."""

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
    options: Mapping[str, object] = spec.options
    values |= {name: str(options[name]) for name in SLURM_OPTIONS if options.get(name)}
    if spec.tasks and not spec.tasks.names and spec.platform == "slurm":
        values["array"] = array_text(spec.tasks)
    if known is not None:
        param.pop("env", None)
        values["env"] = _variables(spec, known)
        for each in fields_of(known.platform):
            if each.key and each.key not in ("num_gpu", "env"):
                values[each.name] = _take(param, each, known)
        values |= _folders(param)
    values["other"] = param_text(param) if param else ""
    array = spec.tasks if spec.tasks and spec.tasks.names else None
    swept = _sweep_fields(array) if array else {}
    values |= swept
    notes = ["the values of its sweep are not in the form: blobsync submit --sweep-file"] if array and not swept else []
    notes += [
        f"{name}: its value is not recorded" for name in spec.secret_env if known is None or name not in known.env
    ]
    if home is None:
        notes.append("an older blobsync recorded this job: what -p changed is not known")
    return FilledForm(JobForm(spec.cluster, {name: text for name, text in values.items() if text}), tuple(notes))


def _sweep_fields(tasks: TaskArray) -> dict[str, str]:
    """The fields that ask for these tasks again, all combinations or side by side; empty if none do."""
    parallel = {"parallel": str(tasks.parallel)} if tasks.parallel else {}
    for zipped in (False, True):
        lists = {name: values if zipped else dict.fromkeys(values) for name, values in tasks.columns.items()}
        words = [f"{name}={','.join(values)}" for name, values in lists.items()]
        with suppress(UsageError):
            if sweep(words, zipped=zipped).rows == tasks.rows:
                return {"sweep": "\n".join(words), "zip": "yes" if zipped else "", **parallel}
    return {}


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
    here = value_at(param, around)
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
    """The fields of folder entries; an entry that says more stays among the other keys."""
    found: dict[str, str] = {}
    entries = param.get("config_param")
    for key, entry in list(entries.items()) if isinstance(entries, dict) else ():
        folder = key.removesuffix(FOLDER_SUFFIX)
        if not isinstance(entry, Mapping) or not entry or entry.keys() - FOLDER_FIELD_BY_KEY.keys():
            continue
        texts = {folder_field(FOLDER_FIELD_BY_KEY[name], folder): _text_of(value) for name, value in entry.items()}
        if all(texts.values()):
            found |= {name: text for name, text in texts.items() if text}
            del param["config_param"][key]
    if entries == {}:
        del param["config_param"]
    return found


def _text_of(value: Any) -> str:
    """What a field says for this value; empty if none does."""
    if isinstance(value, list) and all(isinstance(part, str) and not {";", "\n"} & {*part} for part in value):
        return "; ".join(value)
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
