"""The table of commands: the names of each, the module that has it, and its line of ``--help``."""

from __future__ import annotations

from blobsync.base.records import NamedTuple


class Word(NamedTuple):
    """One command: its names, the first being the main one, its module, and its line of ``--help``."""

    names: tuple[str, ...]
    module: str
    help: str


SECTIONS: tuple[tuple[str, tuple[Word, ...]], ...] = (
    (
        "Data",
        (
            Word(("status",), "status", "Show what is in sync, and what is not, for all folder entries."),
            Word(("u", "upload"), "transfer", "Upload files or folders; with -f: copy them from another cluster."),
            Word(("d", "download"), "transfer", "Download files or folders."),
            Word(("keep",), "keep", "Upload folders while programs write them; list and stop what does."),
            Word(("plan",), "transfer", "Show what u or d would do with each file, and why."),
            Word(("apply",), "transfer", "Carry out a plan saved with 'plan --save'."),
            Word(("verify",), "transfer", "Compare the local files, the blobs and the record of both."),
            Word(("lock",), "content", "Write down which files a container holds, to be committed."),
            Word(("history",), "history", "Show what was transferred, removed and submitted, and by whom."),
            Word(("ls",), "ls", "List blobs, or the folder entries if no PATH is given."),
            Word(("du",), "ls", "Count the blobs and bytes below a path."),
            Word(("stat",), "ls", "Show one path: the local file, the blob, and the record."),
            Word(("checkpoints",), "keep", "List checkpoints, and which one a restart would take."),
            Word(("checkpoint",), "keep", "Say that a checkpoint is complete."),
            Word(("cat",), "content", "Print the bytes of a blob."),
            Word(("diff",), "content", "Show how a file differs from its blob, or a folder between two locks."),
            Word(("resolve",), "ls", "Show where a path lives, and why."),
            Word(("url",), "ls", "Make a URL that opens a blob for a limited time."),
            Word(("rm",), "removal", "Delete blobs, after asking."),
            Word(("undo",), "removal", "Take back what a transfer or removal replaced, deleted and created."),
            Word(("trash",), "removal", "List, restore or delete the local files that transfers replaced."),
        ),
    ),
    (
        "Code and jobs",
        (
            Word(("init", "initi"), "init", "Pack the project's code and upload it, for jobs to run."),
            Word(("initc", "initic"), "init", "Compile in the cluster's docker image, then run init."),
            Word(("submit",), "submit", "Run a command on the cluster."),
            Word(("local",), "submit", "Run a command as a job on this machine, in the foreground."),
            Word(("q", "query"), "jobs", "List jobs, or show some with their logs."),
            Word(("qq",), "jobs", "List queued jobs."),
            Word(("qr",), "jobs", "List running jobs."),
            Word(("qf", "f", "failed"), "jobs", "List failed jobs."),
            Word(("logs",), "jobs", "Print a job's logs; -F follows them."),
            Word(("outputs",), "outputs", "List what a job has written, make links to it, or download it."),
            Word(("a", "abort"), "submit", "Stop jobs."),
            Word(("resubmit",), "submit", "Submit recorded jobs again, here or on another cluster."),
            Word(("scale",), "submit", "Change the number of nodes of an elastic job."),
            Word(("ssh",), "submit", "Open a shell where a job runs."),
            Word(("tunnel",), "tunnel", "Open a port of a job's node here, or a tunnel with a name."),
            Word(("summary", "s"), "jobs", "Show the free capacity of the cluster."),
            Word(("blame",), "jobs", "Show who uses the cluster."),
            Word(("parse",), "jobs", "Find known causes of failure in a job's logs."),
            Word(("watch",), "submit", "Submit a job again when the failure looks temporary."),
        ),
    ),
    (
        "Set-up",
        (
            Word(("web",), "web", "Show the project, its transfers and jobs in the browser."),
            Word(("config",), "config", "Check the configuration files, or create them."),
            Word(("login",), "login", "Store your own SAS or account key, outside the project."),
            Word(("convert",), "convert", "Write files of Batch AI or Philly as a cluster file and a command."),
            Word(("compute",), "compute", "List, create, scale and remove compute clusters of Azure ML."),
            Word(("doctor",), "doctor", "Check everything that transfers need, and show how to fix it."),
            Word(("azcopy",), "doctor", "Install azcopy, or show which one is used."),
            Word(("emulator",), "config", "Start or stop a local blob server."),
            Word(("schema",), "schema", "Print what a command prints with --json, as a JSON schema."),
            Word(("demo",), "demo", "Try the main commands on a real data set, on this machine."),
        ),
    ),
)

WORDS = {name: word for _, words in SECTIONS for word in words for name in word.names}

# Everything after these words belongs to the command that the job runs.
ENDS_WITH_A_COMMAND = ("submit", "local")
