"""docs/correctness.md names files, functions and tests that exist, and leaves none out."""

import ast
import re

from pages import page
from source_tree import PACKAGE, ROOT

TRANSCRIPTIONS = ROOT / "tests" / "transcriptions"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in page("correctness.md").splitlines()
    if re.match(r"\| [A-Z]", line)
]


def named(cell):
    """Files of a cell, and the names in each: "`file.py`: `name`, `name`; `file.py`: ..."."""
    for part in cell.split("; "):
        file, *names = re.findall(r"`([\w./]+)`", part)
        yield file, names


def definitions(path):
    """Functions and classes of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}


def test_what_the_table_names_exists():
    assert len(ROWS) > 30
    for formula, _, code, transcription, test in ROWS:
        for folder, cell in ((PACKAGE, code), (TRANSCRIPTIONS, transcription)):
            for file, names in named(cell):
                missing = set(names) - definitions(folder / file)
                assert names, formula
                assert not missing, f"{formula}: {file} has no {missing}"
        assert test == "all" or (TRANSCRIPTIONS / test.strip("`")).exists(), formula


def test_each_transcribed_algorithm_and_test_is_in_the_table():
    cells = [
        file for row in ROWS for cell in row[2:] for file in re.findall(r"`([\w/]+\.py)`", cell)
    ]
    written = {path.name for path in TRANSCRIPTIONS.glob("*.py")}
    support = {"comparison.py", "logged_envs.py", "own_networks.py"}
    assert written - support <= set(cells)
    algorithms = {path.name for path in (PACKAGE / "algorithms").glob("*.py")}
    losses = {
        name for name in algorithms if "_loss(" in (PACKAGE / "algorithms" / name).read_text()
    }
    assert {f"algorithms/{name}" for name in losses} <= set(cells)
