"""``make mutants``: change the package in one place at a time; the fast tests must notice.

    python -m tests.mutation                  400 mutants, drawn with a seed that is printed
    python -m tests.mutation --count 40 --seed 7
    python -m tests.mutation --only replay/   whose names, as in the output, hold this

A mutant is tried in a copy of the project with the tests that call the changed function, quick ones
that call little else first, until one fails. It gets a minute of tests at most, so the share that
is noticed is a lower bound; `--limit-s inf` gives it all of them. Mutants that no test can tell
from the original are listed with the reason in `equivalent.txt` and not drawn. Neither mutmut nor
cosmic-ray does this here: the first rewrites all functions, which the tests of counted calls and
of workers' code see; the second runs all tests for each mutant, three minutes each.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutation.operators import Mutant, mutants_of
from tests.mutation.trials import Outcome

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROOMS = ("algorithms", "learning", "policies", "connectors", "replay", "sampling")
NOT_RUN = ("tests/house/", "tests/benchmarks/", "tests/mutation/")
"""Tests that read the source or count calls would notice any change for no good reason."""
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
LEFT_OUT = tuple(f"--ignore={part}" for part in NOT_RUN)


@dataclass(frozen=True)
class Test:
    """A test, the seconds that it took, and how many functions of the package it called."""

    id: str
    seconds: float
    functions: int

    def price(self, function: str) -> float:
        """Quick tests come first, and of these the ones that call little else than the function.

        Tests in the folder of its room and in a file named like its own are ten times as cheap.
        """
        room, _, file = function.partition(":")[0].partition("/")
        names = f"tests/{room}/", file.removesuffix(".py").rpartition("/")[2]
        return max(self.seconds, 0.001) * self.functions / 10 ** sum(n in self.id for n in names)


def main() -> None:
    """Try mutants; exit with 1 if too few are noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--count", type=int, default=400, help="mutants to try")
    parser.add_argument("--seed", type=int, help="of the draw; one is chosen and printed")
    parser.add_argument("--only", default="", help="part of the mutants' names")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--at-least", type=float, default=0.95, help="share that must be noticed")
    parser.add_argument(
        "--limit-s", type=float, default=60.0, help="seconds of tests that a mutant gets at most"
    )
    parser.add_argument("--calls", type=Path, help="keep which test calls what in this folder")
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if arguments.seed is None else arguments.seed
    drawn = draw(arguments.count, seed, arguments.only)
    print(f"{len(drawn)} mutants, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        calls = arguments.calls or Path(folder) / "calls"
        tests = tests_by_function(calls, arguments.workers)
        outcomes = try_all(drawn, tests, Path(folder), arguments.workers, arguments.limit_s)
    survived = {outcome.name for outcome in outcomes if outcome.killed_by is None}
    survivors = [mutant for mutant in drawn if mutant.name in survived]
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
        for mutant in mutants_of(path.relative_to(ROOT), path.read_text())
        if only in mutant.name and mutant.name not in equivalent
    ]
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def tests_by_function(calls: Path, workers: int) -> dict[str, list[Test]]:
    """Fast tests by the function that they call, ``path in rlrun:qualified name``."""
    if not calls.exists():
        calls.mkdir(parents=True)
        paths = os.pathsep.join([str(HERE), str(ROOT)])
        environment = {**os.environ, "RLRUN_CALLS": str(calls), "PYTHONPATH": paths}
        command = [*PYTEST, *LEFT_OUT, "-p", "recorder", "-n", str(workers), "--dist", "loadfile"]
        print("the fast tests run once, to see which functions each calls", flush=True)
        subprocess.run([*command, "-x"], cwd=ROOT, env=environment, check=True)
    found = defaultdict(list)
    for file in sorted(calls.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if row["test"].startswith(NOT_RUN):
                continue
            for function in row["functions"]:
                found[function].append(Test(row["test"], row["seconds"], len(row["functions"])))
    return {name: sorted(tests, key=lambda test: test.price(name)) for name, tests in found.items()}


def try_all(
    mutants: list[Mutant], tests: dict[str, list[Test]], folder: Path, workers: int, limit_s: float
) -> list[Outcome]:
    """Try mutants side by side, each worker in a copy of the project."""
    running = []
    for index in range(workers):
        copy, plan = folder / f"copy-{index}", folder / f"plan-{index}"
        _copy_project(copy)
        plan.mkdir()
        lines = [json.dumps(_trial(each, tests, limit_s)) for each in mutants[index::workers]]
        (plan / "plan.jsonl").write_text("\n".join(lines))
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy),
            "RLRUN_TRIALS": str(plan),
            "OMP_NUM_THREADS": "1",  # threads do not survive a fork
        }
        command = [*PYTEST, *LEFT_OUT, "-p", "tests.mutation.trials"]
        command += [f"--basetemp={folder / f'tmp-{index}'}"]
        with (plan / "log.txt").open("w") as log:
            process = subprocess.Popen(command, cwd=copy, env=environment, stdout=log, stderr=log)
        running.append((process, plan))
    outcomes = [outcome for process, plan in running for outcome in _outcomes(process, plan)]
    if len(outcomes) < len(mutants):
        sys.exit((running[0][1] / "log.txt").read_text())
    return outcomes


def _trial(mutant: Mutant, tests: dict[str, list[Test]], limit_s: float) -> dict[str, Any]:
    """Of the tests that call the function those that fit into the limit."""
    function = f"{mutant.path.relative_to('rlrun').as_posix()}:{mutant.function}"
    left_s, chosen = limit_s, []
    for test in tests.get(function, []):
        if test.seconds <= left_s:
            left_s -= test.seconds
            chosen.append((test.id, test.seconds))
    return {
        "name": mutant.name,
        "path": mutant.path.as_posix(),
        "function": mutant.function,
        "source": mutant.source,
        "tests": chosen,
    }


def _outcomes(process: subprocess.Popen[bytes], plan: Path) -> Iterator[Outcome]:
    """Outcomes as they come, each with a line."""
    read, ended = 0, False
    while not ended:
        ended = process.poll() is not None
        path = plan / "outcomes.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        for line in lines[read:]:
            if line.endswith("\n"):
                outcome = Outcome(**json.loads(line))
                by = outcome.killed_by
                what = "SURVIVED" if by is None else f"noticed by {by}"
                print(f"{outcome.seconds:5.1f} s {outcome.name}: {what}", flush=True)
                read += 1
                yield outcome
        time.sleep(0 if ended else 0.2)


def _copy_project(target: Path) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, tracked.stdout.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)


if __name__ == "__main__":
    main()
