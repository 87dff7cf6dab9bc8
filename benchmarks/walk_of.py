"""The files of blobsync that a command goes through: ``python -m benchmarks.walk_of u`` (``d``, ``submit``, ``page``).

``u`` and ``d`` move a folder of 41 small files on the fast server, ``submit`` submits a job to this machine, ``page``
plans that upload on the local web page. Printed are the files of which a function runs on the main thread, in the order
in which the first one does, and how many modules are loaded at the end. What runs while a module loads does not count
as entered. ``page`` counts all threads, since a server answers on others. ``--loaded`` lists the modules that are only
loaded, too; ``--against CHECKOUT`` the files that another checkout enters and this one does not.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from benchmarks.emulator import ACCOUNT, ROOT
from benchmarks.fast_server import fast_server
from benchmarks.tools import Blobsync, Place
from benchmarks.trees import Tree

_WALKS = {
    "u": ("u", "data/voc20"),
    "d": ("d", "data/voc20"),
    "submit": ("submit", "true"),
    "page": ("web", "--no-browser", "--port", "0"),
}
_TREE = Tree(41, 2000)
# Runs in the process that is looked at. The bodies of modules and classes have no optimized locals (flag 1).
_FOLLOWED = """
import json, os, sys, threading
output, every, *words = sys.argv[1:]
entered, loading = {}, {}
def follow(frame, event, _):
    thread = threading.get_ident()
    if frame.f_code.co_name == "<module>":
        loading[thread] = loading.get(thread, 0) + (event == "call") - (event == "return")
    elif event == "call" and frame.f_code.co_flags & 1 and not loading.get(thread):
        entered.setdefault(frame.f_code.co_filename)
if every == "all threads":
    threading.setprofile(follow)
import blobsync.cli.main
home = os.path.dirname(blobsync.__file__) + os.sep
sys.argv[1:] = words
sys.setprofile(follow)
code = blobsync.cli.main.main()
sys.setprofile(None)
loaded = [module.__file__ for name, module in list(sys.modules.items()) if name.partition(".")[0] == "blobsync"]
short = [[path[len(home):] for path in paths if path.startswith(home)] for paths in (list(entered), loaded)]
with open(output, "w") as file:
    json.dump(short, file)
sys.exit(code)
"""


class Walk(NamedTuple):
    """Files below ``blobsync/``: those entered, in order, and those loaded."""

    entered: list[str]
    loaded: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.walk_of", description=__doc__)
    parser.add_argument("command", choices=_WALKS)
    parser.add_argument("--loaded", action="store_true", help="list the modules that are only loaded, too")
    parser.add_argument("--against", type=Path, help="another checkout, to be compared with this one")
    options = parser.parse_args()
    walk = walk_of(options.command, ROOT)
    print(f"{options.command}: {len(walk.entered)} files entered, {len(walk.loaded)} loaded")
    print(*walk.entered, sep="\n")
    if options.loaded:
        print("\nloaded only:", *sorted(set(walk.loaded) - set(walk.entered)), sep="\n")
    if options.against:
        other = walk_of(options.command, options.against.resolve())
        print(f"\n{options.against}: {len(other.entered)} entered, {len(other.loaded)} loaded; entered only there:")
        print(*(path for path in other.entered if path not in walk.entered), sep="\n")


def walk_of(command: str, tree: Path) -> Walk:
    """What this command of the checkout ``tree`` goes through, in a new project."""
    # A job's supervisor may write to its folder for a moment after the command.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, fast_server() as server:
        local = Path(folder, "project", "data", "voc20")
        place = Place(f"{server.url}/{ACCOUNT}", server.new_container(), "base/voc20", local, single=False)
        project = Blobsync(Path(folder)).project(place)
        _TREE.link(Path(folder, "trees"), local)
        cluster = project / "aux_data" / "aml" / "aml.yaml"
        cluster.write_text(f"platform: local\n{cluster.read_text()}")
        environ = {**os.environ, "PYTHONPATH": str(tree), "HOME": folder, "XDG_CONFIG_HOME": folder, **server.environ}
        output = Path(folder, "walk.json")
        threads = "all threads" if command == "page" else "main thread"
        argv = [sys.executable, "-c", _FOLLOWED, str(output), threads, *_WALKS[command]]
        if command == "d":
            subprocess.run([*argv[:5], *_WALKS["u"]], cwd=project, env=environ, check=True, capture_output=True)
            for path in local.rglob("*.bin"):
                path.unlink()
        if command == "page":
            _plan_on_page(argv, project, environ)
        else:
            subprocess.run(argv, cwd=project, env=environ, check=True, capture_output=True)
        return Walk(*json.loads(output.read_text()))


def _plan_on_page(argv: list[str], project: Path, environ: dict[str, str]) -> None:
    """Start the page, log in, plan the upload of ``data/voc20``, and look at the plan until it is complete."""
    with subprocess.Popen(argv, cwd=project, env=environ, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        link = next(found for line in server.stdout if (found := re.search(r"127\.0\.0\.1:(\d+)/login#(\S+)", line)))
        host = f"127.0.0.1:{link[1]}"
        headers = {"Host": host, "Accept": "text/html", "Origin": f"http://{host}"}

        def ask(path: str, form: dict[str, str] | None = None) -> tuple[str, http.client.HTTPResponse]:
            connection = http.client.HTTPConnection(host, timeout=60)
            sent = {**headers, "Content-Type": "application/x-www-form-urlencoded"} if form else headers
            connection.request("POST" if form else "GET", path, urlencode(form or {}), sent)
            answer = connection.getresponse()
            return answer.read().decode(), answer

        _, answer = ask("/login", {"login_token": link[2]})
        headers["Cookie"] = str(answer.getheader("Set-Cookie")).partition(";")[0]
        token = re.search(r'name="form_token" value="([^"]+)"', ask("/")[0])
        assert token is not None
        _, answer = ask("/plans", {"form_token": token[1], "direction": "u", "path": "data/voc20"})
        plan = str(answer.getheader("Location"))
        while "41" not in ask(plan)[0]:
            time.sleep(0.2)
        server.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
