"""Suggests the command for an unknown word: a misspelt one, or the equivalent of another tool's command."""

from __future__ import annotations

import shlex
from collections.abc import Container, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

# Commands of rsync, cp, git, rclone, DVC, azcopy, aws, gsutil, scp, Slurm, kubectl and docker, by ours. Names in the
# command table need no line here.
OTHER_TOOLS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("push", "put", "send", "add", "import", "publish"), ("u",)),
    **dict.fromkeys(("pull", "get", "fetch", "checkout", "clone", "restore", "export"), ("d",)),
    **dict.fromkeys(("sync", "cp", "copy", "copyto", "rsync", "scp", "bisync", "transfer"), ("u", "d")),
    **dict.fromkeys(("mv", "move", "rename"), ("u", "rm")),
    **dict.fromkeys(("preview", "dry-run"), ("plan", "verify")),
    **dict.fromkeys(("md5sum", "fsck"), ("verify",)),
    **dict.fromkeys(("cmp", "compare"), ("diff", "verify")),
    **dict.fromkeys(("check", "hashsum"), ("verify", "config check", "doctor")),
    **dict.fromkeys(("list", "dir", "lsd", "lsf", "tree", "find"), ("ls",)),
    **dict.fromkeys(("size", "usage"), ("du",)),
    **dict.fromkeys(("info", "show"), ("stat",)),
    **dict.fromkeys(("head", "type", "less", "more"), ("cat",)),
    **dict.fromkeys(("where", "which"), ("resolve",)),
    **dict.fromkeys(("delete", "del", "remove", "purge", "rmdir", "unlink"), ("rm",)),
    **dict.fromkeys(("link", "share", "sas", "presign", "signurl"), ("url",)),
    **dict.fromkeys(("pack", "zip", "archive"), ("init",)),
    **dict.fromkeys(("run", "sbatch", "srun", "launch", "apply-job", "exec", "job"), ("submit", "local")),
    **dict.fromkeys(("jobs", "ps", "squeue", "top"), ("q",)),
    **dict.fromkeys(("cancel", "kill", "stop", "scancel", "terminate"), ("a",)),
    **dict.fromkeys(("log", "tail"), ("logs", "history")),
    **dict.fromkeys(("retry", "rerun", "requeue"), ("resubmit",)),
    **dict.fromkeys(("shell", "attach", "connect"), ("ssh",)),
    **dict.fromkeys(("sinfo", "capacity", "nodes"), ("summary",)),
    **dict.fromkeys(("new", "configure", "create"), ("config new",)),
    **dict.fromkeys(("auth", "signin", "credentials", "logout"), ("login",)),
    **dict.fromkeys(("install", "update", "upgrade"), ("azcopy install",)),
    **dict.fromkeys(("azurite", "server"), ("emulator start",)),
    # Of `az batchai`, petctl and other predecessors; words about jobs never lead to a command for data.
    **dict.fromkeys(("job create", "job submit", "experiment create"), ("submit", "submit --file JOB")),
    **dict.fromkeys(("job run", "run_job"), ("submit",)),
    **dict.fromkeys(("job file list", "job file"), ("outputs", "logs")),
    **dict.fromkeys(("job stream", "job file stream", "job logs", "stream", "job tail", "get_logs"), ("logs -F",)),
    **dict.fromkeys(("job list", "job show", "job wait", "check_status", "job check_status", "status_check"), ("q",)),
    **dict.fromkeys(("job monitor", "monitor", "track", "job track"), ("q --watch", "logs -F")),
    **dict.fromkeys(("job terminate", "job delete", "job cancel", "job stop", "job kill", "job rm"), ("a",)),
    **dict.fromkeys(("job download", "job output", "job outputs", "job get", "job cp"), ("outputs",)),
    **dict.fromkeys(("job resubmit", "job retry", "experiment resubmit"), ("resubmit",)),
    **dict.fromkeys(("job exec", "job ssh", "job connect", "job node", "cluster node"), ("ssh",)),
    **dict.fromkeys(("experiment", "experiment list", "experiment show"), ("q", "history")),
    **dict.fromkeys(("cluster", "cluster list", "cluster show"), ("compute ls",)),
    **dict.fromkeys(("cluster create",), ("compute create",)),
    **dict.fromkeys(("cluster delete",), ("compute rm",)),
    **dict.fromkeys(("cluster resize", "cluster auto-scale"), ("compute scale",)),
    **dict.fromkeys(("scale_up", "scale_down", "resize", "auto-scale"), ("scale", "compute scale")),
    **dict.fromkeys(("storage", "storage share create", "share create", "container create"), ("config new",)),
    **dict.fromkeys(("storage file upload", "storage blob upload", "storage fs upload"), ("u",)),
    **dict.fromkeys(("storage file download", "storage blob download", "storage fs download"), ("d",)),
    **dict.fromkeys(("storage file list", "storage blob list"), ("ls",)),
    **dict.fromkeys(("workspace", "workspace create", "file-server", "file-server create"), ("config new",)),
    **dict.fromkeys(("upload_storage",), ("u", "init")),
    **dict.fromkeys(("storage_secret",), ("login", "config new")),
}
# Words of other tools that no command of ours is, and what is done in their place.
IN_OTHER_WORDS: Mapping[str, str] = {
    "docker_secret": "the login of a registry is in the cluster file: docker: {address, username, password}, or"
    " kubernetes: {pull_secret}",
    "delete_resources": "blobsync makes and deletes no Kubernetes cluster; 'blobsync abort --all' stops jobs",
    "setup": "'blobsync config new' sets up a project, 'blobsync compute create' a cluster of Azure ML; one of"
    " Kubernetes is made by its own tools, and kubernetes: {context} names it",
}
# Their options, and what is said in their place.
_OTHER_OPTIONS: Mapping[str, str] = {
    "--storage-account-name": "the storage account is in a file of aux_data/configs, which 'blobsync config new"
    " --account NAME' writes; of a job file, it is $AZURE_BATCHAI_STORAGE_ACCOUNT",
    "--storage-account-key": "'blobsync login' keeps a key; of a job file, it is $AZURE_BATCHAI_STORAGE_KEY",
    **dict.fromkeys(
        ("--rg", "--new_node_count", "--new-node-count"),
        "'blobsync scale ID N' changes the nodes of a job, 'blobsync compute scale NAME N' those of a cluster",
    ),
    **dict.fromkeys(("--recursive", "--archive"), "omit it: a folder is taken with all that is below it"),
    **dict.fromkeys(
        ("--put-md5", "--check-md5", "--checksum", "--size-only", "--update", "--ignore-times", "--partial"),
        "omit it: files are compared by their content, each one is checked when it has arrived, and the same command"
        " goes on where it was stopped",
    ),
    **dict.fromkeys(
        ("--ignore-existing", "--no-clobber", "--immutable"),
        "omit it: what differs at the destination is left alone, unless --overwrite or --keep is given",
    ),
    "--progress": "omit it: a terminal shows the progress, and -q hides it",
}
# Their options, by ours, of commands that have those.
_SAME_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("--bwlimit", "--bandwidth", "--limit-rate", "--rate-limit", "--max-bandwidth"), "--cap-mbps"),
    **dict.fromkeys(("--delete", "--delete-after", "--delete-during", "--delete-destination"), "--mirror"),
    **dict.fromkeys(("--include-pattern", "--include-path", "--filter", "--pattern"), "--include"),
    **dict.fromkeys(("--exclude-pattern", "--exclude-path"), "--exclude"),
    **dict.fromkeys(("--copy-links", "--follow-symlinks", "--no-follow-symlinks", "--preserve-symlinks"), "--links"),
    **dict.fromkeys(("--transfers", "--threads", "--concurrency", "--parallel", "--jobs"), "--processes"),
    **dict.fromkeys(("--preview", "--dryrun", "--just-print"), "--dry-run"),
    **dict.fromkeys(("--limit", "--max-count", "--num-results", "--max-results", "--count"), "--max"),
    **dict.fromkeys(("--lines",), "--tail"),
    **dict.fromkeys(("--after-time", "--since-time", "--starttime"), "--since"),
    **dict.fromkeys(("--expires-in", "--expire", "--duration"), "--expiry"),
    **dict.fromkeys(("--force", "--no-confirm"), "--yes"),
    **dict.fromkeys(("--job-name",), "--name"),
    **dict.fromkeys(("--dependency", "--depends-on"), "--after"),
}
# Programs whose words follow their names.
_PROGRAMS = frozenset(("az", "batchai", "ml", "petctl"))
# What other tools call the command that sets up the shell; here it is an option.
_COMPLETION = ("completion", "completions", "autocomplete", "autocompletion")
# The number of words of the longest one.
_MOST_WORDS = 3


# How alike a misspelt word is to the one that was meant, of 1.
_ALIKE = 0.7
# Maximum number of commands that are named for an option.
_NAMED = 3


def option_hint(option: str, near: Sequence[str], own: Sequence[Any], root: Any) -> str:
    """What to type instead of an option that a command does not accept: one of its ``own`` that other tools call so,
    commands that accept it, or a similarly spelt one. ``root`` is the parser's context of the whole command line.
    Ends with a blank, or is empty."""
    for each in own:
        if _SAME_OPTIONS.get(option) in each.opts:
            return f"did you mean {_SAME_OPTIONS[option]} ({each.help.rstrip('.')})? "
    if option in _OTHER_OPTIONS:
        return f"{_OTHER_OPTIONS[option]}; "
    owners: dict[object, str] = {}
    for name in root.command.list_commands(root):
        command = root.command.get_command(root, name)
        if any(option in parameter.opts for parameter in command.params):
            # The first name of a command that has several.
            owners.setdefault(command.help, f"'blobsync {name}'")
    if owners:
        more = ", ..." if len(owners) > _NAMED else ""
        return f"{option} belongs to {', '.join([*owners.values()][:_NAMED])}{more}; "
    alike = get_close_matches(option, near, n=2, cutoff=0.75)
    return f"did you mean {' or '.join(alike)}? " if alike else ""


def word_of_group(word: str, commands: Container[str]) -> str | None:
    """Which of a group's ``commands`` other tools call ``word``: ``list`` is ``ls``."""
    return next((each for each in OTHER_TOOLS.get(word.lower(), ()) if each in commands), None)


def command_hint(words: Sequence[str], known: Mapping[str, str]) -> str:
    """What to type instead of an unknown command, which begins with ``words``.

    ``known`` are blobsync's commands, each with its line of help.
    """
    while words[1:] and words[0] in _PROGRAMS:
        words = words[1:]
    word = words[0]
    if word == "help":
        one = words[1] if words[1:] and words[1] in known else "COMMAND"
        return f"'blobsync --help' lists all commands, 'blobsync {one} --help' explains one"
    if word == "version":
        return "'blobsync --version' shows it"
    if word in _COMPLETION:
        return "'blobsync --install-completion' makes your shell complete commands, --show-completion prints the script"
    if word in IN_OTHER_WORDS:
        return IN_OTHER_WORDS[word]
    typed = (" ".join(words[:count]).lower() for count in range(_MOST_WORDS, 0, -1))
    said_elsewhere = next((OTHER_TOOLS[each] for each in typed if each in OTHER_TOOLS), ())
    meant: tuple[str, ...] = tuple(each for each in said_elsewhere if each.split()[0] in known)
    if not meant and "/" in word:
        path = shlex.quote(word)
        return f"'blobsync u {path}' uploads it, 'blobsync d {path}' downloads it"
    if not meant:
        # A command of one letter is like too many words, and one of them stops jobs.
        named = [each for each in known if len(each) > 1]
        others = [other for other in OTHER_TOOLS if OTHER_TOOLS[other][0].split()[0] in known]
        near = get_close_matches(word.lower(), [*named, *others], n=1, cutoff=_ALIKE)
        meant = OTHER_TOOLS.get(near[0], (near[0],)) if near and near[0] not in known else tuple(near)
    if not meant:
        return "'blobsync --help' lists all commands"
    first = meant[0].split()[0]
    said = f" ({known[first].rstrip('.')})" if len(meant) == 1 and first == meant[0] else ""
    listed = " or ".join(f"'blobsync {each}'" for each in meant)
    return f"did you mean {listed}{said}? 'blobsync --help' lists all commands"
