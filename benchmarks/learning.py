"""What rlrun's shipped configurations learn beside Stable-Baselines3 with the zoo's settings.

Each trains with the same seeds for the same number of env steps, the zoo's, on the same version of
the environment; then its last policy acts for 100 episodes without exploration, on Pendulum-v1 from
the same 100 starts, which differ as much as the policies. Seeds are 11 and those that follow;
rlrun's settings were chosen on 1, 2 and 3. The zoo's hyperparameters are those that its package
rl_zoo3 brings, run by its own `rl_zoo3.train`, and for a few seeds by `rlrun train`, which imports
them. Speed is not measured here, so it may run beside other work: hours, all cases together.

    python -m benchmarks.learning --resume --cases ppo-cartpole dqn-acrobot

With `--resume`, runs of rlrun are made again where its configuration has changed since.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks import harness, summary
from benchmarks.harness import Contender
from benchmarks.machine import REPOSITORY, commit
from benchmarks.record import RESULTS, Record
from benchmarks.time_to_solve import IN_ONE_PROCESS, roll_out
from rlrun.experiment.report.statistics import (
    MIN_RUNS,
    bootstrap_interval,
    iqm,
    probability_of_improvement,
)

BENCHMARK = "learning"
FIRST_SEED = 11
EPISODES = 100
NUMBERED_STARTS = "benchmarks.environments:numbered_starts"
TIMEOUT_S = 6 * 3600.0
RLRUN = Contender("rlrun", "rlrun", "rlrun")
ZOO = Contender("Stable-Baselines3, zoo settings", "zoo", "zoo")
IMPORTED = Contender("rlrun, zoo settings", "imported", "zoo")  # whose files it reads
IMPORTED_SEEDS = 3
"""Enough to see whether the zoo's settings mean the same; there is no verdict."""


@dataclass(frozen=True)
class Case:
    """An algorithm on an environment, for as many env steps as the zoo gives it."""

    name: str  # as in `rlrun verify`
    algorithm: str  # in the zoo
    env: str
    steps: int
    seeds: int
    overrides: tuple[str, ...] = ()
    numbered_starts: bool = False

    @property
    def config(self) -> Path:
        """The file in configs/."""
        return REPOSITORY / "configs" / f"{self.name.replace('-', '_')}.yaml"


CASES = (
    Case("ppo-cartpole", "ppo", "CartPole-v1", 100_000, 10, IN_ONE_PROCESS),
    Case(
        "ppo-pendulum",
        "ppo",
        "Pendulum-v1",
        100_000,
        10,
        ("training.lr=[[0, 1e-3], [100_000, 0.0]]", "training.gamma=0.95"),
        numbered_starts=True,
    ),
    Case(
        "dqn-cartpole",
        "dqn",
        "CartPole-v1",
        50_000,
        10,
        (
            "training.lr=[[0, 1e-3], [50_000, 1e-5]]",
            "exploration.epsilon=[[0, 1.0], [8_000, 0.04]]",
        ),
    ),
    Case("a2c-cartpole", "a2c", "CartPole-v1", 500_000, 5),
    Case("sac-pendulum", "sac", "Pendulum-v1", 20_000, 5, numbered_starts=True),
    Case("dqn-acrobot", "dqn", "Acrobot-v1", 100_000, 5),
    Case("dqn-lunarlander", "dqn", "LunarLander-v3", 100_000, 10),
    Case("sac-mountaincar-continuous", "sac", "MountainCarContinuous-v0", 50_000, 5),
    Case("a2c-mountaincar-continuous", "a2c", "MountainCarContinuous-v0", 100_000, 10),
    Case("ppo-mountaincar", "ppo", "MountainCar-v0", 1_000_000, 5),
    Case(
        "ppo-acrobot",
        "ppo",
        "Acrobot-v1",
        1_000_000,
        5,
        (*IN_ONE_PROCESS, "training.lr=[[0, 3e-3], [1_000_000, 0.0]]"),
    ),
    Case("ppo-lunarlander", "ppo", "LunarLander-v3", 1_000_000, 5, IN_ONE_PROCESS),
)


def learn_with_rlrun(file: Path, overrides: Sequence[str], case: Case, seed: int) -> dict[str, Any]:
    """The mean return of the last checkpoint of `rlrun train`."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        changed = [*overrides, f"stop.env_steps={case.steps}"]
        words = ["train", str(file), *changed, "--seed", str(seed), "--run-dir", str(run)]
        rlrun = [sys.executable, "-m", "rlrun"]
        harness.run_command([*rlrun, *words, "--quiet"], timeout_s=TIMEOUT_S)
        starts = [f"env={{use: {NUMBERED_STARTS}, id: {case.env}}}"] if case.numbered_starts else []
        evaluation = roll_out(run / "checkpoints" / "latest", EPISODES, *starts)
    return {"evaluation": evaluation["episode_return_mean"], "commit": commit(REPOSITORY)}


def zoo_file(case: Case) -> Path:
    """The zoo's settings of the case's algorithm."""
    (folder,) = ZOO.python.parents[1].glob("lib/python*/site-packages/rl_zoo3/hyperparams")
    return folder / f"{case.algorithm}.yml"


def learn_with_zoo(case: Case, seed: int) -> dict[str, Any]:
    """The mean return of the last policy of `rl_zoo3.train`."""
    task = ["--algorithm", case.algorithm, "--env", case.env, "--steps", str(case.steps)]
    task += ["--seed", str(seed), "--episodes", str(EPISODES)]
    task += ["--numbered-starts"] if case.numbered_starts else []
    return harness.run_driver(ZOO, *task, timeout_s=TIMEOUT_S)


def measure(case: Case, contender: Contender, round_: int) -> dict[str, Any]:
    """One policy of a contender, trained with the round's seed."""
    seed = FIRST_SEED + round_ - 1
    if contender is ZOO:
        return learn_with_zoo(case, seed)
    if contender is IMPORTED:
        return learn_with_rlrun(zoo_file(case), [f"name={case.env}"], case, seed)
    overrides = [*case.overrides, "stop.episode_return_mean=null"]
    return learn_with_rlrun(case.config, overrides, case, seed)


def record_path(case: Case, folder: Path = RESULTS) -> Path:
    """Each case has a file of its own, so that one can be measured anew."""
    return folder / BENCHMARK / f"{case.name}.json"


def table(folder: Path) -> str:
    """A row a case: what both reach, and how probably a run of rlrun is the better one."""
    rows, versions = [], dict[str, None]()
    records = [(case, record_path(case, folder)) for case in CASES]
    for case, path in records:
        if not path.exists():
            continue
        record = Record.load(path)
        ours, theirs, imported = (
            list(record.values(contender.name, "evaluation").values())
            for contender in (RLRUN, ZOO, IMPORTED)
        )
        if ours and theirs:
            seeds = " and ".join(str(count) for count in dict.fromkeys((len(ours), len(theirs))))
            estimates = [estimate(ours), estimate(theirs), probability(ours, theirs)]
            estimates.append(estimate(imported) if imported else "\N{EN DASH}")
            rows.append([case.name, f"{case.steps:,}", seeds, *estimates])
            versions[", ".join(" ".join(pair) for pair in record.versions()[ZOO.name].items())] = (
                None
            )
    if not rows:
        return ""
    better, those = "a run of rlrun is better", f"{IMPORTED.name}, {IMPORTED_SEEDS} seeds"
    header = ["", "env steps", "seeds", RLRUN.name, ZOO.name, better, those]
    lines = [summary.markdown_table(header, rows), ""]
    return "\n".join([*lines, *(f"- {ZOO.name}: {text}." for text in versions)])


def estimate(returns: Sequence[float]) -> str:
    """Interquartile mean with its 95% interval; of few runs with the lowest and the highest."""
    few = len(returns) < MIN_RUNS
    low, high = (min(returns), max(returns)) if few else bootstrap_interval(iqm, returns)
    return f"{iqm(returns):,.1f} ({low:,.1f}\N{EN DASH}{high:,.1f})"


def probability(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Probability of improvement with its 95% interval; without one if there are few runs."""
    value = f"{probability_of_improvement(ours, theirs):.2f}"
    if min(len(ours), len(theirs)) < MIN_RUNS:
        return value
    low, high = bootstrap_interval(probability_of_improvement, ours, theirs)
    return f"{value} ({low:.2f}\N{EN DASH}{high:.2f})"


def main() -> None:
    parser = harness.arguments_parser(__doc__, rounds=10)
    parser.add_argument(
        "--cases", nargs="+", choices=[case.name for case in CASES], help="only these"
    )
    options = parser.parse_args()
    for case in CASES:
        if options.cases is None or case.name in options.cases:
            train(case, options)
    print(f"\n{table(RESULTS)}")


def train(case: Case, options: argparse.Namespace) -> None:
    """Add the missing runs of a case to its file."""
    path, of_rlrun = record_path(case), settings_of_rlrun(case)
    settings = {"steps": case.steps, "numbered_starts": case.numbered_starts, **of_rlrun}
    if options.resume and path.exists():
        drop_if_changed(path, of_rlrun)
    record = Record.open(BENCHMARK, settings, path=path, resume=options.resume, anywhere=True)
    print(case.name, flush=True)
    chosen = harness.choose((RLRUN, ZOO, IMPORTED), options.contenders)
    learn = partial(measure, case)
    rounds = min(options.rounds, case.seeds)
    harness.run_rounds(record, [each for each in chosen if each is not IMPORTED], rounds, learn)
    if IMPORTED in chosen:
        harness.run_rounds(record, [IMPORTED], min(rounds, IMPORTED_SEEDS), learn)


def settings_of_rlrun(case: Case) -> dict[str, Any]:
    """What decides, beside the seed, what rlrun learns."""
    return {"overrides": list(case.overrides), "config": yaml.safe_load(case.config.read_text())}


def drop_if_changed(path: Path, of_rlrun: dict[str, Any]) -> None:
    """Drop a record's measurements of rlrun if its settings have changed since."""
    record = Record.load(path)
    if record.settings.items() >= of_rlrun.items():
        return
    record.settings |= of_rlrun
    record.measurements = [
        entry for entry in record.measurements if entry["contender"] != RLRUN.name
    ]
    record.save()


if __name__ == "__main__":
    main()
