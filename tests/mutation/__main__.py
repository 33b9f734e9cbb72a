"""``make mutants``: change the package in one place at a time; the fast tests must notice.

    python -m tests.mutation                  400 mutants, drawn with a seed that is printed
    python -m tests.mutation --count 40 --seed 7
    python -m tests.mutation --only replay/   of files whose path holds this

A mutant is tried in a copy of the project with the tests that call the changed function, quick ones
first, until one fails. Mutants that no test can tell from the original are listed with the reason
in `equivalent.txt` and not drawn. Neither mutmut nor cosmic-ray does this here: the first rewrites
all functions, which the tests of counted calls and of workers' code see; the second runs all tests
for each mutant, three minutes each.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.operators import Mutant, mutants_of

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROOMS = ("algorithms", "learning", "policies", "connectors", "replay", "sampling")
NOT_RUN = ("tests/house/", "tests/benchmarks/", "tests/mutation/")
"""Tests that read the source or count calls would notice any change for no good reason."""
FIRST_SECONDS = 30.0
"""Of tests that are tried together first: most mutants end here."""
PYTEST = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Test:
    """A test and the seconds that it took."""

    id: str
    seconds: float


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
    """Fast tests by the function that they call, ``path in rlrun:qualified name``."""
    if not calls.exists():
        calls.mkdir(parents=True)
        paths = os.pathsep.join([str(HERE), str(ROOT)])
        environment = {**os.environ, "RLRUN_CALLS": str(calls), "PYTHONPATH": paths}
        command = [*PYTEST, "-p", "recorder", "--numprocesses", str(workers), "--dist", "loadfile"]
        left_out = [f"--ignore={part}" for part in NOT_RUN]
        print("the fast tests run once, to see which functions each calls", flush=True)
        subprocess.run([*command, *left_out], cwd=ROOT, env=environment, check=True)
    found = defaultdict(list)
    for file in sorted(calls.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            for function in row["functions"]:
                found[function].append(Test(row["test"], row["seconds"]))
    return {name: sorted(tests, key=lambda test: test.seconds) for name, tests in found.items()}


def try_all(
    mutants: list[Mutant], tests: dict[str, list[Test]], folder: Path, workers: int
) -> list[Outcome]:
    """Try mutants side by side, each worker in a copy of the project."""
    copies: SimpleQueue[Path] = SimpleQueue()
    for index in range(workers):
        copies.put(_copy_project(folder / f"copy-{index}"))

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
    """The test that fails first; quick tests are tried before all others."""
    seconds, quick = 0.0, 0
    while quick < len(tests) and seconds < FIRST_SECONDS:
        seconds += tests[quick].seconds
        quick += 1
    for chosen in (tests[:quick], tests[quick:]):
        failed = _run(chosen, copy) if chosen else None
        if failed is not None:
            return failed
    return None


def _run(tests: list[Test], copy: Path) -> str | None:
    """The test that fails first; a change that never ends is noticed, too."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    limit = 120 + 5 * sum(test.seconds for test in tests)
    command = [*PYTEST, "--tb=no", "-rfE", *(test.id for test in tests)]
    try:
        ran = subprocess.run(
            command,
            check=False,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return "its time limit"
    if ran.returncode == 0:
        return None
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split(" ", 1)[1] if failed else "an import"


if __name__ == "__main__":
    main()
