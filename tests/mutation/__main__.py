"""``make mutants``: change the package in one place at a time; the fast tests must notice.

    python -m tests.mutation                  400 mutants, drawn with a seed that is printed
    python -m tests.mutation --count 40 --seed 7
    python -m tests.mutation --only replay/   of files whose path holds this

A mutant is tried in a copy of the project with the tests that call the changed function, those that
call little else first, until one fails, in a process that is forked from this one. Mutants that no
test can tell from the original are listed with the reason in `equivalent.txt` and not drawn.
Neither mutmut nor cosmic-ray does this here: the first rewrites all functions, which the tests of
counted calls and of workers' code see; the second runs all tests for each mutant, three minutes
each.
"""

import argparse
import compileall
import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from typing import NoReturn

import pytest

from tests.mutation.operators import Mutant, mutants_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROOMS = ("algorithms", "learning", "policies", "connectors", "replay", "sampling")
NOT_RUN = ("tests/house/", "tests/benchmarks/", "tests/mutation/")
"""Tests that read the source or count calls would notice any change for no good reason."""
STAGES_S = (2.0, 20.0, float("inf"))
"""Seconds of tests that are tried together: most mutants end with the first ones."""
OPTIONS = ("-q", "-x", "-p", "no:cacheprovider", "--tb=no", "-rfE")
HEAVY = ("gymnasium", "pydantic", "ray", "torch", "typer")
"""Imported once, and not for each mutant."""


@dataclass(frozen=True, order=True)
class Test:
    """A test and the seconds that it took."""

    id: str
    seconds: float = field(compare=False)


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: the test that failed, or none."""

    mutant: Mutant
    killed_by: str | None
    seconds: float


def main() -> None:
    """Try mutants; exit with 1 if too few are noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--count", type=int, default=400, help="mutants to try")
    parser.add_argument("--seed", type=int, help="of the draw; one is chosen and printed")
    parser.add_argument("--only", default="", help="part of the path of the files to change")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--at-least", type=float, default=0.95, help="share that must be noticed")
    parser.add_argument("--calls", type=Path, help="keep which test calls what in this folder")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    drawn = draw(arguments.count, seed, arguments.only)
    print(f"{len(drawn)} mutants, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        calls = arguments.calls or Path(folder) / "calls"
        tests = tests_by_function(calls, arguments.workers)
        outcomes = try_all(drawn, tests, Path(folder), arguments.workers)
    survivors = [outcome.mutant for outcome in outcomes if outcome.killed_by is None]
    share = 1 - len(survivors) / max(1, len(outcomes))
    noticed = len(outcomes) - len(survivors)
    print(f"{noticed} of {len(outcomes)} noticed ({share:.1%}), seed {seed}")
    for mutant in survivors:
        print(f"survived: {mutant.name} (line {mutant.line})")
    sys.exit(share < arguments.at_least)


def draw(count: int, seed: int, only: str = "") -> list[Mutant]:
    """So many mutants of the package, all of them equally likely, without equivalent ones."""
    known = (HERE / "equivalent.txt").read_text().splitlines()
    equivalent = {line.rsplit(" # ", 1)[0] for line in known}
    files = [path for room in ROOMS for path in sorted((ROOT / "rlrun" / room).rglob("*.py"))]
    mutants = [
        mutant
        for path in files
        if only in path.as_posix()
        for mutant in mutants_of(path.relative_to(ROOT), path.read_text())
        if mutant.name not in equivalent
    ]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def tests_by_function(calls: Path, workers: int) -> dict[str, list[Test]]:
    """Fast tests by the function that they call, ``path in rlrun:qualified name``.

    Tests that call few functions of the package come first: they are about those.
    """
    if not calls.exists():
        calls.mkdir(parents=True)
        paths = os.pathsep.join([str(HERE), str(ROOT)])
        environment = {**os.environ, "RLRUN_CALLS": str(calls), "PYTHONPATH": paths}
        command = [
            sys.executable,
            "-m",
            "pytest",
            *OPTIONS,
            "-p",
            "recorder",
            "--numprocesses",
            str(workers),
            "--dist",
            "loadfile",
        ]
        left_out = [f"--ignore={part}" for part in NOT_RUN]
        print("the fast tests run once, to see which functions each calls", flush=True)
        subprocess.run([*command, *left_out], cwd=ROOT, env=environment, check=True)
    found = defaultdict(list)
    for file in sorted(calls.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            for function in row["functions"]:
                found[function].append((len(row["functions"]), Test(row["test"], row["seconds"])))
    return {name: [test for _, test in sorted(tests)] for name, tests in found.items()}


def try_all(
    mutants: list[Mutant], tests: dict[str, list[Test]], folder: Path, workers: int
) -> list[Outcome]:
    """Try mutants side by side, each worker in a copy of the project."""
    for name in HEAVY:
        importlib.import_module(name)
    copies: SimpleQueue[Path] = SimpleQueue()
    for index in range(workers):
        copies.put(_copy_project(folder / f"copy-{index}"))
    quickest = min(tests.values(), key=lambda calling: calling[0].seconds)[:1]
    if (failed := _run(quickest, folder / "copy-0")) is not None:
        sys.exit(f"without any change, this fails: {failed}")

    def try_one(numbered: tuple[int, Mutant]) -> Outcome:
        index, mutant = numbered
        copy = copies.get()
        try:
            outcome = _try(mutant, tests, copy)
        finally:
            copies.put(copy)
        what = "SURVIVED" if outcome.killed_by is None else f"noticed by {outcome.killed_by}"
        print(f"{index + 1:4} {outcome.seconds:5.1f} s {mutant.name}: {what}", flush=True)
        return outcome

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(try_one, enumerate(mutants)))


def _copy_project(target: Path) -> Path:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, tracked.stdout.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    # By their hash: a mutant may be as long as the original, and as old to the second.
    compileall.compile_dir(
        target / "rlrun", quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH
    )
    return target


def _try(mutant: Mutant, tests: dict[str, list[Test]], copy: Path) -> Outcome:
    begin = time.monotonic()
    path = copy / mutant.path
    original = path.read_text()
    path.write_text(mutant.source)
    try:
        function = f"{mutant.path.relative_to('rlrun').as_posix()}:{mutant.function}"
        killed_by = _first_failure(tests.get(function, []), copy)
    finally:
        path.write_text(original)
    return Outcome(mutant, killed_by, time.monotonic() - begin)


def _first_failure(tests: list[Test], copy: Path) -> str | None:
    """The test that fails first."""
    left = deque(tests)
    for seconds in STAGES_S:
        chosen = list[Test]()
        while left and sum(test.seconds for test in chosen) < seconds:
            chosen.append(left.popleft())
        if chosen and (failed := _run(chosen, copy)) is not None:
            return failed
    return None


def _run(tests: list[Test], copy: Path) -> str | None:
    """The test that fails first; a change that never ends is noticed, too."""
    limit = 120 + 5 * sum(test.seconds for test in tests)
    with tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if pid == 0:
            _become_pytest([*OPTIONS, *(test.id for test in tests)], copy, output.fileno())
        code = _exit_code(pid, limit)
        output.seek(0)
        failed = [line for line in output if line.startswith(("FAILED", "ERROR"))]
    if code is None:
        return "its time limit"
    if code == 0:
        return None
    return failed[0].rstrip().split(" - ")[0].split(" ", 1)[1] if failed else "an import"


def _become_pytest(arguments: list[str], copy: Path, output: int) -> NoReturn:
    """Run tests in a forked process, which has all but the package imported."""
    code, leave = 1, os._exit  # which the command line replaces, where a test calls it
    try:
        os.setsid()
        os.chdir(copy)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.path[:] = [str(copy), *(path for path in sys.path if Path(path or ".") != ROOT)]
        os.environ["PYTHONPATH"] = str(copy)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        sys.dont_write_bytecode = False
        for name in [*sys.modules]:
            if name.partition(".")[0] == "tests":
                del sys.modules[name]
        code = int(pytest.main(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        leave(code)


def _exit_code(pid: int, limit_s: float) -> int | None:
    """The exit code of a process that has a group of its own; None if the limit ends it."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    main()
