"""The changes of the mutation tester, and its choice of tests."""

from __future__ import annotations

import ast

from tests.source import ROOT
from tools.mutations import own_mutants
from tools.relevant_tests import is_free_of, relevant

SOURCE = '''"""Words."""

LIMIT = 3


class Gate:
    def let(self, größe: int) -> bool:
        if größe > LIMIT and self.open:
            self.count += 1
            return False
        check(größe)
        return [each for each in (größe,) if each] != []
'''


def changes() -> set[tuple[int, str, str]]:
    return {(mutant.line, mutant.where, mutant.after) for mutant in own_mutants(SOURCE)}


def test_conditions_operands_and_statements_are_changed() -> None:
    assert changes() == {
        (8, "Gate.let", "if ((größe > LIMIT and self.open) and False):"),
        (8, "Gate.let", "if ((größe > LIMIT and self.open) or True):"),
        (8, "Gate.let", "if ((größe > LIMIT)):"),
        (8, "Gate.let", "if ((self.open)):"),
        (9, "Gate.let", "pass"),
        (11, "Gate.let", "pass"),
        (12, "Gate.let", "return [each for each in (größe,) if ((each) and False)] != []"),
        (12, "Gate.let", "return [each for each in (größe,) if ((each) or True)] != []"),
    }


def test_every_mutant_is_valid_python_and_differs_in_its_line() -> None:
    for mutant in own_mutants(SOURCE):
        ast.parse(mutant.source)
        assert SOURCE.splitlines()[mutant.line - 1].strip() == mutant.before != mutant.after
        assert mutant.lines == 1


def test_what_only_a_process_of_its_own_runs_stays_as_it_is() -> None:
    program = 'if __name__ == "__main__":\n    check(1)\n    check(2)\n'
    last = "check(3)\n"
    assert [mutant.line for mutant in own_mutants(SOURCE + program + last)] == [
        *(mutant.line for mutant in own_mutants(SOURCE)),
        len(SOURCE.splitlines()) + 4,
    ]


def test_tests_that_import_the_module_directly_or_over_one_other_are_relevant() -> None:
    names = {path.name for path in relevant(ROOT / "blobsync/transfer/ledger.py")}
    assert "test_transfer.py" in names
    assert "test_parse.py" not in names


def test_a_module_does_not_depend_on_those_that_it_never_imports() -> None:
    ledger = ROOT / "blobsync/transfer/ledger.py"
    assert is_free_of("blobsync.plan.transfer_plan", [ledger])
    assert not is_free_of("blobsync.transfer.carry_out", [ledger])
    assert not is_free_of("blobsync.transfer.ledger", [ledger])
