"""docs/faults.md names tests that exist, all that measure what a fault costs, and their figures."""

import ast
import re

from fault_figures import with_figures
from pages import page
from source_tree import ROOT

PAGE = page("faults.md")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


def functions_of(path):
    return [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def test_each_promise_of_the_page_has_a_test():
    assert len(NAMED) > 20
    assert len(NAMED) == len(set(NAMED))
    for file, name in NAMED:
        assert name in {test.name for test in functions_of(ROOT / file)}, f"{file}::{name}"


def test_each_test_that_measures_is_on_the_page():
    measuring = {
        (path.relative_to(ROOT).as_posix(), test.name)
        for path in (ROOT / "tests").rglob("test_*.py")
        if "record_fault" in path.read_text(encoding="utf-8")  # parsing all takes seconds
        for test in functions_of(path)
        if "record_fault" in {argument.arg for argument in test.args.args}
    }
    assert measuring
    assert not measuring - set(NAMED)


def test_figures_replace_the_last_cells_of_the_row_of_their_test():
    row = "| a fault | a promise | `tests/a/test_b.py::test_c` | 7 |  |  |  |"
    figures = {"lost": [0], "repeated": [1, 3, 200], "recovery_s": [], "memory_mb": [5]}
    (new, other) = with_figures(f"{row}\nno row", {"tests/a/test_b.py::test_c": figures}).split(
        "\n"
    )
    cells = [cell.strip() for cell in new.split("|")]
    assert cells[1:3] == ["a fault", "a promise"]
    assert cells[4:8] == ["0", "3, at most 200 of 3", "", "5"]
    assert other == "no row"
