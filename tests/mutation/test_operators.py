"""The mutants of a source: which there are, and that each changes one place and compiles."""

import ast
from pathlib import Path

from tests.mutation.operators import mutants_of

SOURCE = '''
"""A module, 1 + 1."""

LIMIT = 3 + 4


class Sums:
    """Sums, at most 5."""

    def add(self, numbers: list[int], most: int = 9) -> int:
        """Add numbers, at most 7."""
        assert most > 0, "not negative"
        total = (numbers[0]  # the first
                 + 2.0)
        if most <= total and not self:
            raise ValueError(f"{total} > {most}")
        _log.info("sum %d", total + 1)
        self.numbers += total
        for _ in zip(numbers, self.numbers, strict=True):
            pass
        self.numbers.reshape(-1, 4)
        return max(total, -1)
'''
CHANGES = {
    ("total = (numbers[0]  # the first", "total = (numbers[1]  # the first"),
    ("total = (numbers[0]  # the first + 2.0)", "total = (numbers[0] - 2.0)"),
    ("+ 2.0)", "+ 4.0)"),
    ("if most <= total and not self:", "if most < total and not self:"),
    ("if most <= total and not self:", "if most <= total or not self:"),
    ("if most <= total and not self:", "if most <= total and (self):"),
    ("self.numbers += total", "self.numbers -= total"),
    ("self.numbers += total", "pass"),
    ("self.numbers.reshape(-1, 4)", "self.numbers.reshape(-1, 5)"),
    ("self.numbers.reshape(-1, 4)", "pass"),
    ("return max(total, -1)", "return min(total, -1)"),
    ("return max(total, -1)", "return max(total, -2)"),
}


def test_mutants_change_what_a_function_computes_and_nothing_else() -> None:
    mutants = list(mutants_of(Path("sums.py"), SOURCE))

    assert {(mutant.before, mutant.after) for mutant in mutants} == CHANGES
    assert {mutant.function for mutant in mutants} == {"Sums.add"}
    for mutant in mutants:
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(SOURCE))
