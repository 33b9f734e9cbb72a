"""Mutants that are tried in forks: what counts as noticed, and what is left as it was."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation import __main__ as mutation

TRIALS = Path(__file__).with_name("trials.py")
SOURCE = """
class Sum:
    def of(self, one, other):
        return one + other
"""
MUTANT = SOURCE.replace("+", "-")
TESTS = """
import subprocess
import sys

from rlrun.sums import Sum

def test_zero():
    assert Sum().of(0, 0) == 0

def test_two_numbers():
    assert Sum().of(2, 3) == 5

def test_another_process():
    code = "from rlrun.sums import Sum; assert Sum().of(2, 3) == 5"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_wrong_without_a_mutant():
    assert Sum().of(2, 3) == 7
"""


def test_tests_of_a_functions_own_room_come_first_and_those_that_read_the_source_not_at_all(
    tmp_path,
):
    recorded = {
        "tests/house/test_budgets.py::test_calls": 0.1,
        "tests/actors/test_group.py::test_quick": 0.1,
        "tests/replay/test_buffers.py::test_slower": 0.5,
        "tests/replay/test_sums.py::test_slowest": 2.0,
    }
    called = ["replay/sums.py:Sum.of"]
    rows = [{"test": name, "seconds": s, "functions": called} for name, s in recorded.items()]
    (tmp_path / "1.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tests,) = mutation.tests_by_function(tmp_path, 1).values()
    named, near, other = list(recorded)[:0:-1]
    assert [test.id for test in tests] == [named, near, other]


@pytest.fixture
def killers(tmp_path):
    """Call it with tests for one mutant after another: which test has noticed each."""
    for folder in ("rlrun", "tests/mutation", "plan"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(TRIALS, tmp_path / "tests/mutation")
    (tmp_path / "rlrun/__init__.py").touch()
    (tmp_path / "rlrun/sums.py").write_text(SOURCE)
    (tmp_path / "test_sums.py").write_text(TESTS)

    def killers(*tests, source=MUTANT):
        trials = [
            {
                "name": "a mutant",
                "path": "rlrun/sums.py",
                "function": "Sum.of",
                "source": source,
                "tests": [(f"test_sums.py::test_{name}", 0.1) for name in names],
            }
            for names in tests
        ]
        (tmp_path / "plan/plan.jsonl").write_text("\n".join(map(json.dumps, trials)))
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "RLRUN_TRIALS": "plan"}
        command = [sys.executable, "-m", "pytest", "-p", "tests.mutation.trials", "test_sums.py"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True)
        assert (tmp_path / "rlrun/sums.py").read_text() == SOURCE
        outcomes = (tmp_path / "plan/outcomes.jsonl").read_text().splitlines()
        found = [json.loads(line)["killed_by"] for line in outcomes]
        return [test and test.removeprefix("test_sums.py::test_") for test in found]

    return killers


def test_a_mutant_is_noticed_by_the_first_test_that_fails_in_this_process_or_another(killers):
    mutants = (["zero", "two_numbers", "another_process"], ["another_process"], ["zero"], [])
    assert killers(*mutants) == ["two_numbers", "another_process", None, None]


def test_a_test_that_fails_without_the_mutant_notices_nothing(killers):
    mutants = (["wrong_without_a_mutant"], ["wrong_without_a_mutant", "two_numbers"])
    assert killers(*mutants) == [None, "two_numbers"]


def test_a_mutant_that_ends_the_process_is_noticed(killers):
    source = SOURCE.replace("return", "__import__('os')._exit(0)\n        return")
    assert killers(["zero"], source=source) == ["zero"]


def test_no_mutant_is_tried_where_tests_cannot_be_collected(killers, tmp_path):
    (tmp_path / "test_sums.py").write_text(f"import nothing\n{TESTS}")
    with pytest.raises(FileNotFoundError, match="outcomes"):
        killers(["zero"])
