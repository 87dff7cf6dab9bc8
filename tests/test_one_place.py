"""One place for each rule: what is written down here stands once in the code."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.source import modules

# They travel to nodes where nothing else is installed, and repeat what they need.
ALONE = (
    "blobsync.node.standalone.bootstrap",
    "blobsync.node.standalone.old_python",
    "blobsync.node.standalone.interactive",
)


@cache
def _texts() -> list[tuple[str, str]]:
    """Every text of the code that is no docstring, with its module; of an f-string each fixed part."""
    found = []
    for module in modules():
        if module.name in ALONE:
            continue
        documents = {
            id(node.body[0].value)
            for node in module.nodes
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in module.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                found.append((module.name, node.value))
    return found


@pytest.mark.parametrize(
    ("rule", "pattern", "homes"),
    [
        ("what stands in the place of a secret", r"\*\*\*", {"blobsync.base.redaction"}),
        ("the order of a SAS's rights", r"\bracwd", {"blobsync.store.sas_token"}),
        ("the rights of a SAS", r"\bracw$|rwdl", {"blobsync.store.sas"}),
        ("how many characters a blob's name may have", r"1,?024 char", set()),
        ("the name of what is unfinished", r"\.blobsync-($|\\?\[)|azDownload", {"blobsync.local.names"}),
        # The scan of code for credentials looks for them in bytes.
        ("how a signature looks in a text", r"sig\(\?:|\[sS\]\[iI\]\[gG\]", {"blobsync.base.redaction"}),
    ],
)
def test_the_rule_is_written_in_one_place(rule: str, pattern: str, homes: set[str]) -> None:
    found = {name for name, text in _texts() if re.search(pattern, text)}
    assert found == homes, rule


# Who asks for a SAS, or whether there is one that allows something.
_ASKING = {"mint_sas", "sas_url", "sign_sas", "check_sas", "check_token", "mint", "_mint", "check"}


def test_rights_and_life_times_of_a_sas_have_their_names_in_one_module() -> None:
    written = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.Call):
                function = node.func
                name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
                given = [*node.args, *(word.value for word in node.keywords)]
                # Either half of a condition as well.
                given += [half for one in given if isinstance(one, ast.IfExp) for half in (one.body, one.orelse)]
                if name in _ASKING and any(isinstance(each, ast.Constant) and _is_said(each.value) for each in given):
                    written.append(f"{module.file}:{node.lineno}")
    assert written == [], "name it in blobsync/store/sas.py"


def _is_said(value: object) -> bool:
    return type(value) is int or (isinstance(value, str) and re.fullmatch("[racwdxyltfmeopi]{1,15}", value) is not None)


def test_whether_a_side_is_as_it_was_verified_is_asked_in_one_module() -> None:
    compared = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.Compare) or (isinstance(node, ast.Call) and "same_file" in ast.dump(node.func)):
                said = ast.unparse(node)
                if re.search(r"\brecord\.(near|remote|md5)\b", said) and module.name != "blobsync.plan.pairing":
                    compared.append(f"{module.file}:{node.lineno}: {said}")
    assert compared == [], "blobsync/plan/pairing.py compares with the record"


def test_the_ports_for_the_master_of_a_job_are_chosen_in_one_module() -> None:
    homes = set()
    for module in modules():
        room = module.name.partition(".")[2].partition(".")[0]
        if room in ("jobspec", "node", "backends", "jobs") and module.name not in ALONE:
            numbers = {node.value for node in module.nodes if isinstance(node, ast.Constant)}
            texts = " ".join(value for value in numbers if isinstance(value, str))
            if 20_000 in numbers or re.search(r"\b20_?000\b", texts):
                homes.add(module.name)
    assert homes == {"blobsync.jobspec.spec"}


# Its handler may run before anything else is imported.
_OWN_CODES = {"blobsync.base.exit_codes", "blobsync.base.stopping"}
# They travel to nodes alone, or their text does.
_SENT = {*ALONE, "blobsync.backends.aml.node_start", "blobsync.node.spread"}


def test_exit_codes_and_how_a_shell_says_a_signal_have_one_home() -> None:
    found = set()
    for module in modules():
        for node in module.nodes:
            sums = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))
            said = node.left if sums else node.value if isinstance(node, ast.Assign) else None  # type: ignore[attr-defined]
            if isinstance(said, ast.Constant) and said.value in ((128,) if sums else (72, 73)):
                found.add(module.name)
    assert found - _SENT == _OWN_CODES, "name it in blobsync/base/exit_codes.py"


def test_every_record_is_declared_by_those_of_this_project() -> None:
    """One module that takes the standard library's makes every command slower, and nobody sees it."""
    # Training programs load mark_complete, and nothing else of blobsync.
    own = (*ALONE, "blobsync.base.records", "blobsync.local.mark_complete")
    theirs = {("typing", "NamedTuple"), ("dataclasses", "dataclass"), ("collections", "namedtuple")}
    others = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom):
                names = {(node.module, each.name) for each in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                names = {(node.value.id, node.attr)}
            else:
                continue
            if names & theirs and module.name not in own:
                others.append(f"{module.name}:{node.lineno}")
    assert others == []
