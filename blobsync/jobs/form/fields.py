"""The fields of the form, and which platform has them. Pure.

A field sets a key of the cluster file (with ``-p``) or an option of ``submit``. Which platforms use a
key is in the tables of ``config check``; ``only`` adds what they do not say, as other commands use the key everywhere.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from blobsync.base.records import dataclass
from blobsync.config.job_keys import ONLY_ON, OUTRANKED
from blobsync.config.known_keys import CLUSTER, PLATFORMS, Key, Kind
from blobsync.config.model import AML_PLATFORMS, Cluster
from blobsync.jobspec.submit_options import SUBMIT_OPTIONS


class FieldEntry(enum.Enum):
    """The kind of input of a field."""

    LINE = "line"
    LINES = "lines"
    NUMBER = "number"
    FLAG = "flag"
    PAIRS = "pairs"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class FormField:
    """One field. ``key`` is its key in the cluster file (dotted), ``option`` its option of ``submit``.

    ``only`` are the platforms that have it; empty: those that the tables of ``config check`` name, or all.
    ``choices`` are the allowed values besides an empty one; none: any. ``example`` is shown in the empty field.
    """

    name: str
    label: str
    group: str
    entry: FieldEntry = FieldEntry.LINE
    key: str = ""
    option: str = ""
    help: str = ""
    example: str = ""
    only: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platforms whose jobs can use it."""
        if self.only:
            return self.only
        section = self.key.partition(".")[0]
        return (section,) if section in PLATFORMS else ONLY_ON.get(self.key, PLATFORMS)


WHAT, SIZE, WHERE, SURROUNDINGS, MORE = "Command", "Size", "Resources", "Environment", "More"


def known_key(dotted: str) -> Key:
    """The entry of a key in the table of cluster files; ``*`` is the name of any folder entry."""
    keys: Mapping[str, Key] = CLUSTER
    found = Key(Kind.TEXT)
    for part in dotted.replace(".*.", ".").split("."):
        found = keys[part]
        keys = found.keys or {}
    return found


def _option(name: str, label: str, group: str, *, option: str = "", help: str = "", example: str = "") -> FormField:
    """The field of an option of ``submit``, as that is declared."""
    option = option or name
    one, about = SUBMIT_OPTIONS[option], SUBMIT_OPTIONS[option].about
    entry = FieldEntry.FLAG if one.is_flag else FieldEntry.NUMBER if about.least is not None else FieldEntry.LINE
    entry = FieldEntry.LINES if about.repeated else entry
    choices = ("yes",) if one.is_flag else ()
    said, shown = help or about.help, example or about.example
    return FormField(name, label, group, entry, "", option, said, shown, about.platforms, choices)


_ENTRIES = {Kind.FLAG: FieldEntry.FLAG, Kind.WHOLE: FieldEntry.NUMBER, Kind.ENVIRONMENT: FieldEntry.PAIRS}


def _key(
    key: str,
    label: str,
    group: str,
    *,
    example: str = "",
    help: str = "",
    only: tuple[str, ...] = (),
    has_lines: bool = False,
) -> FormField:
    """The field of a key of the cluster file, as the table of keys declares it; its name is the key's last part."""
    about = known_key(key)
    entry = FieldEntry.CHOICE if about.choices else _ENTRIES.get(about.kind, FieldEntry.LINE)
    entry = FieldEntry.LINES if has_lines else entry
    choices = ("yes", "no") if entry is FieldEntry.FLAG else about.choices
    return FormField(key.rpartition(".")[2], label, group, entry, key, "", help, example, only, choices)


FIELDS: tuple[FormField, ...] = (
    FormField(
        "command",
        "Command",
        WHAT,
        FieldEntry.LINES,
        option="cmd",
        example="python train.py --data voc20",
        help="A program with its arguments, or a shell line: make && ./run.sh",
    ),
    _option(
        "sweep",
        "Sweep",
        WHAT,
        example="lr=0.1,0.01",
        help="A parameter per line: the command runs for each combination, with {lr} as one of its values.",
    ),
    _option("zip", "Values side by side", WHAT, help="The first value of each parameter, then the second."),
    _option("parallel", "Tasks at a time", WHAT),
    _option("name", "Name", WHAT),
    _key("num_gpu", "GPUs", SIZE, help="In total. 0 for a job without GPUs."),
    _option("nodes", "Nodes", SIZE),
    _option("single", "One process per node", SIZE, option="multi_process", help="Instead of one per GPU."),
    _option("elastic", "Elastic range", SIZE),
    _key("compute_target", "Compute", WHERE, only=AML_PLATFORMS),
    _key("instance_type", "Instance type", WHERE, example="Standard_NC24rs_v3"),
    _key("sla_tier", "SLA tier", WHERE, example="Standard"),
    _key("priority", "Priority", WHERE, example="200"),
    _key("preemption_allowed", "May be preempted", WHERE),
    _option("partition", "Partition", WHERE),
    _option("qos", "Quality of service", WHERE),
    _option("gres", "Generic resources", WHERE),
    _option("array", "Array", WHERE),
    _key("kubernetes.queue", "Queue", WHERE),
    _key("kubernetes.priority_class", "Priority class", WHERE),
    _key("kubernetes.cpu", "CPUs of a pod", WHERE, example="8"),
    _key("kubernetes.memory", "Memory of a pod", WHERE, example="64Gi"),
    _key("slurm.mem", "Memory of a node", WHERE, example="64G"),
    _key("slurm.cpus_per_task", "CPUs of a process", WHERE, example="8"),
    _option("after", "After", WHERE),
    _option("time", "Time limit of Slurm", WHERE),
    _key("timeout", "Time limit", WHERE, example="5h"),
    _key("retries", "Retries", WHERE, help="After a failure that looks temporary; of a sweep's task, after any."),
    _key("docker.image", "Image", SURROUNDINGS, example="pytorch/pytorch:latest"),
    _key("launcher", "Launcher", SURROUNDINGS),
    _key(
        "env",
        "Environment variables",
        SURROUNDINGS,
        example="EPOCHS=20",
        help="NAME=VALUE, one per line. Added to those of the cluster file.",
    ),
    _key(
        "setup",
        "Setup script",
        SURROUNDINGS,
        example="pip install -r requirements.txt",
        help="Runs once on each node, before the command.",
        has_lines=True,
    ),
    _key("work_dir", "Working folder", SURROUNDINGS),
    FormField(
        "other",
        "Other keys of the cluster file",
        MORE,
        FieldEntry.LINES,
        example="docker: {shm_size: 64g}",
        help="YAML, as for -p.",
    ),
    _key(
        "ignore",
        "Not in the code",
        MORE,
        example="*.ckpt",
        help="Patterns as in .gitignore, one per line, for Synchronize and Upload the code first.",
        has_lines=True,
    ),
    _option("init", "Upload the code first", MORE),
    _option("code", "Code", MORE),
)
BY_NAME: Mapping[str, FormField] = {field.name: field for field in FIELDS}
_CHECKPOINTS = "Checkpoints"


def _of_folder(key: str, label: str, group: str = "", *, example: str = "", help: str = "") -> FormField:
    made = _key(f"config_param.*.{key}", label, group, example=example, help=help)
    # What templates in projects call it.
    return replace(made, name="folder_parts" if key == "include" else f"folder_{key}")


_of_checkpoints = partial(_of_folder, group=_CHECKPOINTS)

# The fields of a folder entry, which a form names ``NAME:FOLDER``. Labels without a group continue with the folder.
FOLDER_FIELDS: tuple[FormField, ...] = (
    _of_folder("mode", "How jobs see"),
    _of_folder(
        "include", "Sub-folders of", example="coco; voc/2012", help="Mode download brings only these. Empty: all."
    ),
    _of_checkpoints(
        "checkpoints", "Pattern", example="checkpoint-*", help="Folders or files that mode upload uploads as one set."
    ),
    _of_checkpoints(
        "complete",
        "Complete with",
        example="trainer_state.json",
        help="The file that is written last, or still. Empty: by framework.",
    ),
    _of_checkpoints("settle_seconds", "Seconds without a change", example="5"),
    _of_checkpoints(
        "restore",
        "Restore",
        example="latest",
        help="What a start gets: latest, best, own (each node its own files), none, or a step.",
    ),
    _of_checkpoints("restore_from", "Restore from job", help="Whose checkpoints the first start takes."),
    _of_checkpoints(
        "keep_last",
        "Keep the last",
        example="3",
        help="How many stay in the container. Without any of the three, all do.",
    ),
    _of_checkpoints("keep_every", "Keep every so many steps", example="1000"),
    _of_checkpoints(
        "keep_best",
        "Keep the best",
        example="trainer_state.json:best_metric:max",
        help="FILE:FIELD, the smallest number, or with :max the largest.",
    ),
    _of_checkpoints("upload_cores", "Cores for uploads", example="1"),
    _of_checkpoints("cap_mbps", "Megabits a second at most", example="800"),
)
FOLDER_FIELD_BY_KEY: Mapping[str, FormField] = {field.key.rpartition(".")[2]: field for field in FOLDER_FIELDS}
_FOLDER_FIELD_NAMES = frozenset(field.name for field in FOLDER_FIELDS)


def is_field(name: str) -> bool:
    """Whether a form has a field of this name; a folder's has the folder's behind a colon."""
    own, _, folder = name.partition(":")
    return name in BY_NAME or bool(folder and own in _FOLDER_FIELD_NAMES)


def folder_field(field: FormField, folder: str) -> str:
    """The name of a folder entry's field in a form."""
    return f"{field.name}:{folder}"


def fields_of(platform: str) -> tuple[FormField, ...]:
    """The fields that jobs on ``platform`` have, in their order."""
    return tuple(field for field in FIELDS if platform in field.platforms)


def by_group(fields: Iterable[FormField]) -> dict[str, list[FormField]]:
    """The fields by the names of their groups, in their order."""
    found: dict[str, list[FormField]] = {}
    for each in fields:
        found.setdefault(each.group, []).append(each)
    return found


def key_on(field: FormField, known: Cluster | None) -> str:
    """The key that a field sets on a cluster: the one of its file that takes precedence.

    An environment of Azure ML is no image.
    """
    for winner, platforms in OUTRANKED.get(field.key, ()) if known else ():
        if known and known.platform in platforms and winner != "docker.environment" and known.text(winner):
            return winner
    return field.key
