"""``./dev mutants MODULE...``: changes a module in many small ways, and lists the changes that no test notices.

The changes are those of cosmic-ray's operators and ours (``tools/mutations.py``). The runs are this module's:
cosmic-ray starts one Python for each mutant, with all tests, and writes into the checkout; mutmut passes over constants
and decorated functions; mutatest is not maintained. Here each mutant is a fork that loads the changed source instead of
the module's file, and runs only the tests that reach the changed line.

Survivors that cannot be told from the original stand in ``tests/equivalent_mutants.yaml``, each with its reason.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import pytest
import yaml

from tools.mutations import Mutant, mutants
from tools.relevant_tests import ROOT, is_free_of, relevant

EQUIVALENT = ROOT / "tests" / "equivalent_mutants.yaml"

# A mutant that takes this much longer (times, and seconds on top) than its tests took before hangs: noticed.
_TIMES, _MORE = 4.0, 20.0
_PYTEST = ("-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "-o", "addopts=")
_MODE = ("--import-mode=importlib", "--strict-markers", "-W", "ignore:Module already imported")

Outcome = str
KILLED, SURVIVED, UNTESTED, EQUIVALENT_ONE = "killed", "survived", "untested", "equivalent"
# pytest's exit codes: passed, failed. With any other the tests were not even collected, which is tried once again: a
# busy machine can be the reason, too.
_CODES = {0: SURVIVED, 1: KILLED}
_BROKEN = "broken"


class Baseline(NamedTuple):
    """The tests that reach each line of the module, how long each took (seconds), and what they all import."""

    by_line: Mapping[int, Sequence[str]]
    seconds: Mapping[str, float]
    imported: Sequence[str]


@dataclass
class Result:
    """What became of a module's mutants."""

    module: str
    seconds: float = 0.0
    outcomes: list[tuple[Mutant, Outcome]] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)

    def count(self, outcome: Outcome) -> int:
        return sum(found == outcome for _, found in self.outcomes)


def main(words: Sequence[str]) -> int:
    """Exit code 0: every mutant was noticed or is named as equivalent."""
    parser = argparse.ArgumentParser(prog="./dev mutants", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("module", nargs="+", help="ledger, azcopy.file_results, azcopy/file_results.py, ...")
    parser.add_argument("--jobs", "-j", type=int, default=os.cpu_count() or 1, help="so many mutants at once")
    parser.add_argument("--lines", metavar="FIRST-LAST,...", help="only the mutants of these lines")
    parser.add_argument(
        "--tests", action="append", default=[], metavar="FILE", help="these tests, not the relevant ones"
    )
    given = parser.parse_args(words)
    paths = [module_path(name) for name in given.module]
    if None in paths:
        print(f"mutants: there is no module {given.module[paths.index(None)]} in blobsync", file=sys.stderr)
        return 2
    wish = Wish([path for path in paths if path], given.tests, given.lines, given.jobs)
    try:
        results = [examine(path, wish) for path in wish.paths]
    except BaselineError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    print(table(results))
    return int(any(result.count(SURVIVED) or result.count(UNTESTED) or result.stale for result in results))


class Wish(NamedTuple):
    """The command line; empty ``tests`` means the relevant ones."""

    paths: Sequence[Path]
    tests: Sequence[str] = ()
    lines: str | None = None
    jobs: int = 1


class BaselineError(Exception):
    """The tests fail without any change."""


def module_path(name: str) -> Path | None:
    """The file of ``azcopy.file_results``, however it is written."""
    bare = name.removesuffix(".py").replace("/", ".").removeprefix("blobsync.")
    path = ROOT / "blobsync" / Path(*bare.split(".")).with_suffix(".py")
    return path if path.is_file() else None


def examine(path: Path, wish: Wish) -> Result:
    """Make, run and judge the mutants of one module."""
    began = time.monotonic()
    result = Result(_short(path))
    every = mutants(path.read_text(encoding="utf-8"))
    result.stale = [entry for entry in known_equivalents(result.module) if entry not in {_key(each) for each in every}]
    if wish.lines:
        ends = [each.partition("-") for each in wish.lines.split(",")]
        chosen = {line for first, _, last in ends for line in range(int(first), int(last or first) + 1)}
        every = [mutant for mutant in every if mutant.line in chosen]
    files = wish.tests or [file.relative_to(ROOT).as_posix() for file in relevant(path)]
    work = Path(tempfile.mkdtemp(prefix="blobsync-mutants-"))
    try:
        baseline = measure(path, files, work)
        print(f"mutants: {result.module}: {len(every)} mutants, {len(baseline.seconds)} tests", flush=True)
        _import_ahead(wish.paths, baseline.imported)
        _demand_survival(path, baseline, work)
        result.outcomes = _run_all(path, every, baseline, work, wish.jobs)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    result.seconds = time.monotonic() - began
    return result


def _short(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "blobsync").with_suffix("").parts)


def _key(mutant: Mutant) -> str:
    return _without_blanks(f"{mutant.where}: {mutant.before} => {mutant.after}")


def _without_blanks(text: str) -> str:
    return "".join(text.split())


def known_equivalents(module: str) -> list[str]:
    """The mutants of a module that are named as equivalent, as ``_key`` writes them: blanks do not count."""
    entries = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or []
    return [
        _without_blanks(f"{entry.get('where', '')}: {entry['before']} => {after}")
        for entry in entries
        if entry["module"] == module
        for after in ([entry["after"]] if isinstance(entry["after"], str) else entry["after"])
    ]


# -- one process for each run -----------------------------------------------------------------------------------


def measure(path: Path, files: Sequence[str], work: Path) -> Baseline:
    """Run the tests once as they are, and note which lines of the module each of them reaches."""
    answer = work / "baseline.json"
    child = _fork(work / "baseline", lambda: _measure_here(path, files, answer))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    shutil.rmtree(work / "baseline", ignore_errors=True)
    if code or not answer.is_file():
        raise BaselineError(f"the tests fail as they are:\n{(work / 'baseline.out').read_text()[-3000:]}")
    found = json.loads(answer.read_text())
    return Baseline({int(line): tests for line, tests in found["by_line"].items()}, found["seconds"], found["imported"])


def _measure_here(path: Path, files: Sequence[str], answer: Path) -> int:
    import coverage

    watch = coverage.Coverage(data_file=None, include=[str(path)], config_file=False)
    recorder = _Recorder(watch.switch_context)
    watch.start()
    code = int(pytest.main([*_PYTEST, *_MODE, *files], plugins=[recorder]))
    watch.stop()
    data = watch.get_data()
    by_line = {line: sorted(filter(None, names)) for line, names in data.contexts_by_lineno(str(path)).items()}
    # Lines that run when the module is imported (constants, defaults) concern every test that uses any of it.
    everyone = sorted({name for names in by_line.values() for name in names})
    on_import = {line for line, names in data.contexts_by_lineno(str(path)).items() if "" in names}
    known = {line: names for line, names in by_line.items() if line not in on_import}
    known.update(dict.fromkeys(on_import, everyone))
    seconds = {name: recorder.seconds[name] for name in everyone}
    answer.write_text(json.dumps({"by_line": known, "seconds": seconds, "imported": sorted(sys.modules)}))
    return code


def _import_ahead(paths: Sequence[Path], names: Sequence[str]) -> None:
    """Import once, for all forks, what does not depend on the modules that are examined."""
    for name in names:
        ours = name.partition(".")[0] in ("blobsync", "tests", "tools", "coverage", "__main__", "conftest")
        if name in sys.modules or (ours and not (name.startswith("blobsync") and is_free_of(name, paths))):
            continue
        # Some modules are made by others, and cannot be imported by themselves.
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(name)


class _Recorder:
    """A pytest plugin: which test runs, and for how long."""

    def __init__(self, switch: Callable[[str], object]) -> None:
        self._switch = switch
        self.seconds: dict[str, float] = {}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._switch(nodeid)
        self.seconds[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._switch("")
        self.seconds[nodeid] = time.monotonic() - self.seconds[nodeid]


def _run_all(
    path: Path, every: Sequence[Mutant], baseline: Baseline, work: Path, jobs: int
) -> list[tuple[Mutant, Outcome]]:
    equivalent = set(known_equivalents(_short(path)))
    outcomes: dict[int, Outcome] = {}
    running: dict[int, tuple[int, float]] = {}
    broken: set[int] = set()
    waiting = list(enumerate(every))[::-1]
    while waiting or running:
        while waiting and len(running) < jobs:
            number, mutant = waiting.pop()
            tests = _tests_of(mutant, baseline)
            if _key(mutant) in equivalent:
                outcomes[number] = EQUIVALENT_ONE
            elif not tests:
                outcomes[number] = UNTESTED
            else:
                limit = _MORE + _TIMES * sum(baseline.seconds[test] for test in tests)
                job = _one_run(path, mutant.source, tests)
                running[_fork(work / str(number), job)] = number, time.monotonic() + limit
        for child, (number, limit) in list(running.items()):
            outcome = _ended(child, late=time.monotonic() > limit)
            if outcome is None:
                continue
            del running[child]
            # Now, not at the end: the files of hundreds of runs fill a disk.
            shutil.rmtree(work / str(number), ignore_errors=True)
            if outcome == _BROKEN and number not in broken:
                broken.add(number)
                waiting.append((number, every[number]))
            else:
                outcomes[number] = KILLED if outcome == _BROKEN else outcome
                if outcome == SURVIVED:
                    print(f"  survived  {_shown(path, every[number])}", flush=True)
        time.sleep(0.02)
    return [(mutant, outcomes[number]) for number, mutant in enumerate(every)]


def _demand_survival(path: Path, baseline: Baseline, work: Path) -> None:
    """The unchanged source, run as mutants are, must pass: else every mutant would seem to be noticed."""
    job = _one_run(path, path.read_text(encoding="utf-8"), sorted(baseline.seconds))
    status = os.waitpid(_fork(work / "unchanged", job), 0)[1]
    shutil.rmtree(work / "unchanged", ignore_errors=True)
    if status:
        raise BaselineError(f"the tests fail without a change:\n{(work / 'unchanged.out').read_text()[-3000:]}")


def _one_run(path: Path, source: str, tests: Sequence[str]) -> Callable[[], int]:
    def run() -> int:
        sys.meta_path.insert(0, _Finder(path, source))
        return int(pytest.main([*_PYTEST, *_MODE, *tests]))

    return run


def _tests_of(mutant: Mutant, baseline: Baseline) -> list[str]:
    """The tests that reach the changed lines, the quick ones first."""
    lines = range(mutant.line, mutant.line + mutant.lines)
    tests = {test for line in lines for test in baseline.by_line.get(line, ())}
    return sorted(tests, key=lambda test: (baseline.seconds[test], test))


def _ended(child: int, *, late: bool) -> Outcome | None:
    if late:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return KILLED
    pid, status = os.waitpid(child, os.WNOHANG)
    if not pid:
        return None
    return _CODES.get(os.waitstatus_to_exitcode(status), _BROKEN)


def _fork(base: Path, job: Callable[[], int]) -> int:
    """Run ``job`` in a process group of its own, with its own temporary folder; returns its process id."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setpgid(0, 0)
        out = os.open(base.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        base.mkdir(exist_ok=True)
        os.environ.update(TMPDIR=str(base), HYPOTHESIS_STORAGE_DIRECTORY=str(base / "hypothesis"))
        tempfile.tempdir = None
        code = job()
    except BaseException:  # noqa: BLE001 - shown as the reason for which the tests cannot run
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class _Loader(SourceFileLoader):
    """Gives the module another source than its file's."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._source, self.path, "exec", dont_inherit=True)
        return code


class _Finder:
    """Import hook that finds the one module before all others."""

    def __init__(self, path: Path, source: str) -> None:
        self._path = str(path)
        self._name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        self._source = source

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=_Loader(name, self._path, self._source))


# -- what is printed --------------------------------------------------------------------------------------------


def table(results: Sequence[Result]) -> str:
    """One row for each module, then every mutant that no test noticed."""
    width = max(len(result.module) for result in results)
    rows = [f"{'module':<{width}}  mutants  killed  survived  untested  equivalent  seconds"]
    for result in results:
        counts = [result.count(each) for each in (KILLED, SURVIVED, UNTESTED, EQUIVALENT_ONE)]
        rows.append(
            f"{result.module:<{width}}  {len(result.outcomes):>7}  {counts[0]:>6}  {counts[1]:>8}  {counts[2]:>8}"
            f"  {counts[3]:>10}  {result.seconds:>7.0f}"
        )
    for result in results:
        for mutant, outcome in result.outcomes:
            if outcome in (SURVIVED, UNTESTED):
                rows.append(f"{outcome:<8}  {_shown(Path(result.module.replace('.', '/') + '.py'), mutant)}")
        rows += [f"stale     {result.module}: {entry}" for entry in result.stale]
    return "\n".join(rows)


def _shown(path: Path, mutant: Mutant) -> str:
    return f"{path.name}:{mutant.line} {mutant.where}\n            - {mutant.before}\n            + {mutant.after}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
