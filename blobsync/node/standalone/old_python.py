"""Runs jobs on nodes with an old Python: finds a newer one, or runs simple jobs itself.

Standard library of Python 3.8 only; ``bootstrap.py`` calls ``main``. A job is simple when its folders are linked or
mounted: its code archive is fetched and checked here as on any node, its folders are put in place, its setup commands
run, and this process is replaced by the program. What needs blobsync itself (folders that are downloaded or uploaded,
several processes, a copy of the logs in the container) is rejected, or reported as missing.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shlex
import shutil
import signal
import stat
import string
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NEEDED = (3, 10)
NAMES = [f"python3.{minor}" for minor in range(14, 9, -1)] + ["python3", "python"]
CONDA = (
    "$CONDA_PREFIX",
    "~/miniconda3",
    "~/anaconda3",
    "~/miniforge3",
    "~/mambaforge",
    "/opt/conda",
    "/opt/miniconda3",
)
# blobsync needs ssl for containers and zlib for code archives.
PROBE = "import sys, ssl, zlib; print(*sys.version_info[:2], sys.executable)"
PROBE_SECONDS = 30
# The most that a code archive contains besides code, and the limit for code of unknown size.
OWN_BYTES, SMALL_CODE, UNPACKED_RATIO = 1 << 26, 1 << 30, 100
MANIFEST = ".blobsync-manifest.json"
PART = re.compile(r"\.blobsync-[0-9a-f]{8}\.part|\.azDownload-[0-9a-fA-F-]{36}-.*", re.DOTALL)
NAME_BYTES, PATH_BYTES = 255, 4095


def main(boot: Any) -> int:
    """Raises ``ValueError`` for a job that needs blobsync itself."""
    python, found = newest_python()
    if python:
        os.execv(python, [python, "-I", str(boot.unpacked()), *sys.argv[1:]])
    asked = ", ".join(found) or "none"
    if boot.verb not in ("prepare", "exec", "finish"):
        raise ValueError(f"{boot.verb} needs Python 3.10 or newer; found: {asked}")
    for entry in boot.job["folders"]:
        if entry["mode"] not in ("link", "mount", "ro_mount"):
            raise ValueError(
                f"folder {entry['name']} has mode {entry['mode']}, for which a node needs Python 3.10 or newer; found: "
                f"{asked}; name another one in runtime: {{python: PATH}}, or use mode link or mount"
            )
    if boot.job.get("max_nodes") and boot.job["platform"] not in ("aml", "itp", "singularity"):
        raise ValueError(f"an elastic job needs Python 3.10 or newer on its nodes; found: {asked}")
    if int(boot.job["nodes"]) * int(boot.job["procs_per_node"]) > 1 or boot.job["options"].get("wrapper"):
        raise ValueError(f"a job of several processes needs Python 3.10 or newer on its nodes; found: {asked}")
    if boot.job["options"].get("hold"):
        raise ValueError(f"a job that waits for people needs Python 3.10 or newer on its nodes; found: {asked}")
    job = Job(boot)
    if boot.verb == "finish":
        job.clean_up(int(boot.options.get("--code", "0")))
        return 0
    job.prepare(asked)
    return job.become_the_program() if boot.verb == "exec" else 0


def newest_python() -> tuple[str | None, list[str]]:
    """A Python that can run blobsync (or none), and the versions of all that were tried."""
    places = [sys.executable, *(shutil.which(name) or "" for name in NAMES), os.environ.get("CONDA_PYTHON_EXE", "")]
    for base in (os.path.expanduser(os.path.expandvars(name)) for name in CONDA):
        places += [f"{base}/bin/python", *sorted(glob.glob(glob.escape(base) + "/envs/*/bin/python"))]
    found = []
    for path in dict.fromkeys(filter(os.path.isfile, places)):
        with suppress(OSError, ValueError, subprocess.SubprocessError):
            command = [path, "-I", "-c", PROBE]
            said = subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=PROBE_SECONDS).decode()
            major, minor, real = said.rstrip("\n").split(" ", 2)
            found.append(f"{path} ({major}.{minor})")
            if (int(major), int(minor)) >= NEEDED:
                return real, found
    return None, found


class Job:
    """A job on this node whose processes the launcher starts."""

    def __init__(self, boot: Any) -> None:
        self._boot, self._spec = boot, boot.job
        self._root = boot.folder.with_suffix("")
        self._work_dir = self._root / str(self._spec["options"].get("work_dir", ""))
        self._ready = boot.folder / "ready"
        task = os.environ.get("SLURM_ARRAY_TASK_ID")
        self._run_dir = Path(os.path.abspath(boot.options["--run-dir"]), f"task_{task}" if task else "")

    def prepare(self, asked: str) -> None:
        """Prepare the node, once."""
        if (self._spec.get("tasks") or {}).get("names"):
            raise ValueError("a sweep needs Python 3.10 or newer on the node")
        if self._spec.get("image") and "container" in self._spec["options"]:
            raise ValueError(
                f"docker.image {self._spec['image']} needs Python 3.10 or newer on the node, outside of it"
            )
        with self._boot.locked():
            if self._ready.exists():
                return
            try:
                self._say(
                    f"the Pythons here are {asked}: logs are not copied to the container, and stay on the cluster"
                )
                shutil.rmtree(self._root, ignore_errors=True)
                self._unpack_code()
                for entry in sorted(self._spec["folders"], key=lambda one: str(one["name"])):
                    self._place(entry)
                self._run_setup()
                self._ready.touch()
            except BaseException:
                self._remove_root()
                raise

    def clean_up(self, code: int) -> None:
        keep = self._boot.options.get("--keep-root", "never")
        if keep == "always" or (keep == "failed" and code):
            return
        self._remove_root()
        shutil.rmtree(self._boot.folder, ignore_errors=True)
        with suppress(OSError):
            self._root.parent.rmdir()

    def become_the_program(self) -> int:
        command, env = self._command(), self._environment()
        if "--log" in sys.argv:
            logs = self._run_dir / "user_logs"
            logs.mkdir(parents=True, exist_ok=True)
            log = os.open(logs / "std_log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(log, 1)
            os.dup2(log, 2)
        # Slurm's batch script makes this folder, and passes on warnings only once it is full.
        with suppress(FileNotFoundError):
            (self._run_dir / "up" / "0").touch()
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            # A signal in between would end the program, which has no handler yet.
            signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.chdir(self._work_dir)
        try:
            os.execvpe(command[0], command, env)
        except OSError as error:
            self._complain(f"cannot start {command[0]}: {error.strerror}")
            return 127 if isinstance(error, FileNotFoundError) else 126

    # -- code ---------------------------------------------------------------------------------------------------

    def _unpack_code(self) -> None:
        code, started = self._spec.get("code"), time.monotonic()
        if not code or not code["blob"].endswith(".zip"):
            raise ValueError("code that is not an archive needs Python 3.10 or newer")
        archive, fresh = self._boot.folder / "code.zip", self._boot.folder / "code"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o755)
        limit = int(code.get("size") or 0) + OWN_BYTES if code.get("size") else 1 << 40
        self._boot.fetch(code["container"], code["blob"], archive, limit)
        unzip(archive, fresh, str(code["digest"]), int(code.get("size") or 0))
        archive.unlink()
        fresh.rename(self._root)
        self._say(f"code {code['digest'][:12]} unpacked in {time.monotonic() - started:.1f} s")

    # -- folders ------------------------------------------------------------------------------------------------

    def _place(self, entry: dict[str, Any]) -> None:
        """Place an entry over the code archive's files, but never through another entry's link."""
        path, name = self._root / entry["name"], str(entry["name"])
        parent = os.path.realpath(path.parent)
        if not (parent + os.sep).startswith(os.path.realpath(self._root) + os.sep):
            raise ValueError(f"folder {name} is inside another folder that is linked to {parent}")
        if path.is_symlink() or path.is_file():
            path.unlink()
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        others = (str(one["name"]) for one in self._spec["folders"])
        inner = [other[len(name) + 1 :] for other in others if other.startswith(name + "/")]
        if entry["mode"] != "link":
            self._mount(entry, path)
        elif entry.get("read_only") and inner:
            spread(path, Path(entry["source"]), inner)
        else:
            os.makedirs(entry["source"], exist_ok=True)
            path.symlink_to(entry["source"])

    def _mount(self, entry: dict[str, Any], path: Path) -> None:
        program = shutil.which("blobfuse2")
        if not program:
            raise ValueError(f"folder {entry['name']} has mode {entry['mode']}, and this node has no blobfuse2")
        path.mkdir()
        endpoint, _, container = entry["container"].rpartition("/")
        cache = self._boot.folder / ("cache-" + entry["name"].replace("/", "-"))
        env = dict(
            os.environ,
            AZURE_STORAGE_ACCOUNT=urlsplit(endpoint).netloc.split(".")[0],
            AZURE_STORAGE_BLOB_ENDPOINT=endpoint,
            AZURE_STORAGE_ACCOUNT_CONTAINER=container,
            AZURE_STORAGE_AUTH_TYPE="sas",
            AZURE_STORAGE_SAS_TOKEN=self._boot.secrets.get("sas", {}).get(entry["container"], ""),
        )
        command = [program, "mount", str(path), f"--tmp-path={cache}", "--container-name=" + container]
        command += ["--read-only=true"] if entry["mode"] == "ro_mount" else []
        command += ["--virtual-directory=true", "--subdirectory=" + entry["path"]] if entry["path"] else []
        command += [f"--file-cache-timeout={entry['cache_seconds']}"] if entry.get("cache_seconds") else []
        command += [word for text in entry.get("fuse_options") or () for word in shlex.split(text)]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        self._say(f"mount {entry['name']}: {done.stdout.decode('utf-8', 'replace').strip() or 'done'}")
        if done.returncode:
            raise ValueError(f"folder {entry['name']}: blobfuse2 could not mount it (exit {done.returncode})")

    def _remove_root(self) -> None:
        """Remove the root, but nothing if a mount remains."""
        for entry in self._spec["folders"]:
            path = str(self._root / entry["name"])
            if entry["mode"] != "link" and os.path.ismount(path):
                subprocess.run(["fusermount3", "-u", path], check=False, stdin=subprocess.DEVNULL)
                if os.path.ismount(path):
                    self._complain(f"{path} is still mounted; {self._root} stays")
                    return
        shutil.rmtree(self._root, ignore_errors=True)

    # -- programs -----------------------------------------------------------------------------------------------

    def _run_setup(self) -> None:
        for line in self._spec["setup"]:
            self._say("setup: " + line)
            env, shell = self._environment(), shutil.which("bash") or "/bin/sh"
            folder = self._work_dir if self._work_dir.is_dir() else self._root
            done = subprocess.run([shell, "-c", line], cwd=folder, env=env, stdin=subprocess.DEVNULL, check=False)
            if done.returncode:
                raise ValueError(f"the setup command ended with {done.returncode}: {line}")
        if not self._work_dir.is_dir():
            given = self._spec["options"]["work_dir"]
            raise ValueError(f"there is no folder {given}, the cluster file's work_dir, in the job's folder")

    def _command(self) -> list[str]:
        argv, prefix = [str(part) for part in self._spec["argv"]], str(self._spec["options"].get("command_prefix", ""))
        if len(argv) == 1 and any(letter.isspace() for letter in argv[0].strip()):
            return [shutil.which("bash") or "/bin/sh", "-c", f"{prefix} {argv[0]}".strip()]
        return shlex.split(prefix) + argv

    def _environment(self) -> dict[str, str]:
        """The job's variables, and those of the ranks of its one process."""
        spec, given, asked = self._spec, os.environ, self._spec.get("secret_env", ())
        derived = 20000 + int(hashlib.sha256(spec["run_id"].encode()).hexdigest(), 16) % 20000
        env = {
            "PYTHONUNBUFFERED": "1",
            "HWLOC_COMPONENTS": "-gl",
            # For our own steps alone; the user's steps may set it themselves.
            **{name: value for name, value in given.items() if name != "SLURM_OVERLAP"},
            **spec["env"],
            **{name: text for name, text in self._boot.secrets.get("env", {}).items() if name in asked},
        }
        env.update(
            {**dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK"), "0"), "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        )
        env.update(
            MASTER_ADDR=given.get("MASTER_ADDR") or "127.0.0.1", MASTER_PORT=given.get("MASTER_PORT") or str(derived)
        )
        env.update(BLOBSYNC_RUN_ID=spec["run_id"], BLOBSYNC_ROOT=str(self._root))
        for name, text in spec["options"].get("variables", {}).items():
            env[name] = string.Template(text).safe_substitute(env)
        return env

    # -- messages -----------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        """Write to this node's log, never to the user's."""
        logs = self._run_dir / "system_logs"
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / f"{self._root.name}.txt").open("a", encoding="utf-8", errors="replace") as log:
            log.write(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + self._boot.hide(text) + "\n")

    def _complain(self, text: str) -> None:
        sys.stderr.write(self._boot.hide(text) + "\n")
        sys.stderr.flush()


def unzip(archive: Path, target: Path, digest: str, size: int) -> None:
    """Unpack, with run bits and links, after verifying names, ``size`` and ``digest`` (0, empty: unknown).

    Nothing is written, and no link leads, outside ``target``. The digest is that of ``blobsync.code``.
    """
    base, links = os.path.realpath(target), []
    limit = size + OWN_BYTES if size else max(SMALL_CODE, UNPACKED_RATIO * archive.stat().st_size)
    with zipfile.ZipFile(archive) as source:
        members: dict[str, zipfile.ZipInfo] = {}
        for item in source.infolist():
            path = inside(base, item.filename[:-1] if item.is_dir() else item.filename)
            # Unpack at most so many bytes of a member, whatever its stream contains.
            limit -= item.file_size
            if limit < 0 or members.setdefault(path, item) is not item:
                raise ValueError(f"the code archive holds {item.filename!a} twice, or is larger than it should be")
        if digest and digest != digest_of(source):
            raise ValueError("the code archive does not hold the code that was submitted")
        for path, item in members.items():
            os.makedirs(path if item.is_dir() else os.path.dirname(path), exist_ok=True)
            if kind(item) == "link":
                links.append((path, os.fsdecode(source.read(item))))
            elif not item.is_dir():
                with source.open(item) as stream, open(path, "xb") as sink:
                    shutil.copyfileobj(stream, sink, 1 << 20)
                os.chmod(path, int(kind(item), 8))
    for path, to in links:
        os.symlink(to, path)
    for path, to in links:
        if os.path.isabs(to) or not (os.path.realpath(path) + os.sep).startswith(base + os.sep):
            raise ValueError(f"the code archive holds a link that leads outside: {path[len(base) + 1 :]} -> {to}")


def kind(item: zipfile.ZipInfo) -> str:
    mode = item.external_attr >> 16
    return "link" if stat.S_ISLNK(mode) else "755" if mode & 0o100 else "644"


def digest_of(source: zipfile.ZipFile) -> str:
    whole = hashlib.sha256()
    for item in sorted(source.infolist(), key=lambda item: item.filename):
        if not item.is_dir() and item.filename != MANIFEST:
            digest = hashlib.sha256()
            with source.open(item) as stream:
                for chunk in iter(lambda: stream.read(1 << 20), b""):
                    digest.update(chunk)
            line = f"{kind(item)} {digest.hexdigest()} {item.filename}\0"
            whole.update(line.encode("utf-8", "surrogateescape"))
    return whole.hexdigest()


def inside(base: str, name: str) -> str:
    """The path for an untrusted name. Raises ``ValueError`` if it leads outside ``base``."""
    parts = name.split("/")
    sizes = [len(part.encode("utf-8", "surrogatepass")) for part in (f"{base}/{name}", *parts)]
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"the name {name!a} in the code archive would lead outside")
    if sizes[0] > PATH_BYTES or max(sizes[1:]) > NAME_BYTES or re.search("[\ud800-\udfff]", name):
        raise ValueError(f"the name {name!a} in the code archive is too long, or not valid Unicode")
    if PART.fullmatch(parts[-1]):
        raise ValueError(f"the name {name!a} in the code archive is that of an unfinished download")
    return os.path.join(base, name)


def spread(path: Path, source: Path, inner: list[str]) -> None:
    """Link each item of the read-only ``source`` in a folder which also holds the folders ``inner``."""
    path.mkdir()
    ways = {name.split("/")[0] for name in inner}
    for below in source.iterdir():
        if below.name not in ways:
            (path / below.name).symlink_to(below)
        elif below.name not in inner and below.is_dir():
            deeper = [one.partition("/")[2] for one in inner if one.startswith(f"{below.name}/")]
            spread(path / below.name, below, deeper)
