"""A pytest plugin: tries mutants with tests that are collected once.

Each mutant is a fork of the process that has imported and collected everything. There the code of
the changed function is exchanged in place, so that whoever holds the function calls the mutant; the
file is changed, too, for processes that a test starts. The folder that the environment variable
``RLRUN_TRIALS`` names has the mutants as `plan.jsonl`; `outcomes.jsonl` is written into it.

What a function has done while modules were imported is not done again: a mutant may go unnoticed by
that, and is never noticed by mistake. A test counts only if it passes without the mutant.
"""

import gc
import json
import multiprocessing as mp
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import Phase, settings

PACKAGE = str(Path(__file__).resolve().parents[2] / "rlrun") + os.sep
FORK = mp.get_context("fork")
TICK_S = 0.1
"""Time limits are counted in ticks: a process that was stopped for a while is no endless loop."""


@dataclass(frozen=True)
class Trial:
    """A mutant, and its tests in the order in which they are tried: ids, and seconds of each."""

    name: str
    path: str
    function: str
    source: str
    tests: list[tuple[str, float]]


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the test that failed, or none."""

    name: str
    killed_by: str | None
    seconds: float


class Trials:
    """Runs the mutants of a plan instead of the collected tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._items: dict[str, pytest.Item] = {}
        self._functions: dict[tuple[str, str, int], list[FunctionType]] = {}
        self._passes: dict[str, bool] = {}
        self._later = count(1)  # seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Try one mutant after another, unless tests could not be collected."""
        if session.testsfailed:
            return None  # pytest's own loop says so
        self._items = {item.nodeid: item for item in session.items}
        self._functions = _functions_of_the_package()
        # A test's own processes read the changed file, and leave no compiled mutant behind.
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        gc.freeze()
        plan = (self._folder / "plan.jsonl").read_text().splitlines()
        with (self._folder / "outcomes.jsonl").open("w", buffering=1) as file:
            for line in plan:
                outcome = self._try(Trial(**json.loads(line)))
                file.write(json.dumps(asdict(outcome)) + "\n")
        return True

    def _try(self, trial: Trial) -> Outcome:
        begin = time.monotonic()
        tests = [(test, seconds) for test, seconds in trial.tests if test in self._items]
        path = Path(trial.path)
        original, times = path.read_text(), path.stat()
        while True:
            path.write_text(trial.source)
            # Compiled files are told apart by size and second, which mutants may have in common.
            changed = times.st_mtime_ns + next(self._later) * 10**9
            os.utime(path, ns=(changed, changed))
            try:
                killed_by = self._first_failure(tests, trial)
            finally:
                path.write_text(original)
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            if killed_by is None or self._passes_without_mutant(killed_by, dict(tests)):
                return Outcome(trial.name, killed_by, time.monotonic() - begin)
            tests = [(test, seconds) for test, seconds in tests if test != killed_by]

    def _passes_without_mutant(self, test: str, seconds: dict[str, float]) -> bool:
        if test not in self._passes:
            self._passes[test] = self._first_failure([(test, seconds[test])]) is None
        return self._passes[test]

    def _first_failure(
        self, tests: list[tuple[str, float]], trial: Trial | None = None
    ) -> str | None:
        """The first test that fails in a fork, ends it, or takes far longer than it did."""
        receiver, sender = FORK.Pipe(duplex=False)
        fork = FORK.Process(target=self._run, args=([test for test, _ in tests], trial, sender))
        fork.start()
        sender.close()
        try:
            if not _said(receiver):
                raise RuntimeError(f"no test could run with {trial and trial.name}")
            for test, seconds in tests:
                limit = int((30 + 10 * seconds) / TICK_S)
                if not any(receiver.poll(TICK_S) for _ in range(limit)) or not _said(receiver):
                    return test
        finally:
            fork.kill()
            fork.join()
        return None

    def _run(self, tests: list[str], trial: Trial | None, sender: Connection) -> None:
        """In a fork: run tests and say of each whether it has passed, until one has not."""
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(silence, stream)
        if trial is not None:
            self._exchange(trial)
        sender.send(True)
        items = [self._items[test] for test in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            failed = item.session.testsfailed
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sender.send(item.session.testsfailed == failed)

    def _exchange(self, trial: Trial) -> None:
        outermost = trial.function.split(".<locals>.")[0]
        for code in _codes_in(compile(trial.source, str(Path(trial.path).resolve()), "exec")):
            if code.co_qualname.split(".<locals>.")[0] == outermost:
                key = (trial.path, code.co_qualname, code.co_firstlineno)
                for function in self._functions.get(key, []):
                    function.__code__ = code


def _said(receiver: Connection) -> bool:
    """What the fork says next; one that has died says nothing."""
    try:
        return bool(receiver.recv())
    except EOFError:
        return False


def _functions_of_the_package() -> dict[tuple[str, str, int], list[FunctionType]]:
    """By path from the project's folder, qualified name and line."""
    found = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(PACKAGE):
            code = thing.__code__
            path = f"rlrun/{code.co_filename[len(PACKAGE) :]}"
            found[path, code.co_qualname, code.co_firstlineno].append(thing)
    return dict(found)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """All functions below a module or function, inner ones included."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes_in(constant)


def pytest_configure(config: Any) -> None:
    """Examples are the same for each mutant, and a failing one need not be made small."""
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
    settings.load_profile("mutants")
    config.pluginmanager.register(Trials(Path(os.environ["RLRUN_TRIALS"])))
