"""Seconds from process start until the mean return of the last 100 episodes of CartPole-v1 is 475.

Each framework with settings that suit it: `rlrun train configs/ppo_cartpole.yaml` with its two env
runners, and without, Stable-Baselines3 with the rl-baselines3-zoo's hyperparameters, CleanRL's
defaults, RLlib with those of `benchmarks/peers/rllib.py`. Round n uses seed n. Every time ends when
the criterion is met; rlrun's row of that iteration is in its run folder by then. Each of rlrun's
policies then acts for 20 episodes, deterministically. Twelve minutes with the defaults.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness, summary
from benchmarks.harness import Contender, MeasurementError
from benchmarks.machine import REPOSITORY
from benchmarks.peers.driver import SOLVED_RETURN
from benchmarks.record import Record

BENCHMARK = "time_to_solve"
CONFIG = REPOSITORY / "configs" / "ppo_cartpole.yaml"
RLRUN = Contender("rlrun, configs/ppo_cartpole.yaml", "rlrun", "rlrun")
IN_ONE_PROCESS = ("env_runners.num_env_runners=0", "env_runners.num_envs_per_env_runner=16")
RLRUN_0 = Contender("rlrun, the same in one process", "rlrun-0", "rlrun", IN_ONE_PROCESS)
SB3 = Contender("Stable-Baselines3, zoo settings", "sb3", "sb3")
CLEANRL = Contender("CleanRL ppo.py, defaults", "cleanrl", "cleanrl")
RLLIB = Contender("RLlib, 0 runners, good settings", "rllib", "rllib")
RLLIB_2 = Contender("RLlib, 2 runners, good settings", "rllib-2", "rllib", ("--runners", "2"))
CONTENDERS = (RLRUN, RLRUN_0, SB3, CLEANRL, RLLIB, RLLIB_2)
EVALUATION_EPISODES = 20
TIMEOUT_S = 600.0


def solve_with_rlrun(seed: int, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Runs the command that a user would type, then rolls out its checkpoint."""
    with tempfile.TemporaryDirectory() as scratch:
        run_folder = Path(scratch) / "run"
        options = [*overrides, "--seed", str(seed), "--run-dir", str(run_folder)]
        start = time.time()
        harness.run_command(
            [sys.executable, "-m", "rlrun", "train", str(CONFIG), *options], timeout_s=TIMEOUT_S
        )
        ended = time.time()
        metrics = run_folder / "metrics.jsonl"
        row = json.loads(metrics.read_text().splitlines()[-1])
        solved = (row["episode_return_mean"] or 0.0) >= SOLVED_RETURN
        return {
            "solved_s": metrics.stat().st_mtime - start if solved else None,
            "process_s": ended - start,
            "env_steps": row["env_steps"],
            "evaluation": roll_out(run_folder, EVALUATION_EPISODES),
        }


def roll_out(policy: Path, episodes: int, *overrides: str) -> dict[str, Any]:
    """Statistics of episodes out of `rlrun rollout --json`; no single episodes, no paths."""
    words = ["rollout", str(policy), *overrides, "--episodes", str(episodes), "--json"]
    command = [sys.executable, "-m", "rlrun", *words]
    output = harness.run_command(command, timeout_s=TIMEOUT_S)
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            rollout = json.loads(line)
            return {key: value for key, value in rollout.items() if key.startswith("episode")}
    raise MeasurementError(f"rlrun rollout --json printed no object: {harness.tail(output)}")


def table(record: Record) -> str:
    """Seconds and env steps to solve, how often it was solved, rlrun's ratio and evaluation."""
    ours = record.values(RLRUN.name, "solved_s")
    rows = []
    for name in record.contenders:
        seconds, steps = record.values(name, "solved_s"), record.values(name, "env_steps")
        solved = f"{len(seconds)} of {len(steps)}"
        ratio = summary.ratio_cell(seconds, ours)
        rows.append([name, solved, summary.cell(seconds, 1), summary.cell(steps), ratio])
    header = ["", "solved", "seconds", "env steps", "takes x times as long as rlrun"]
    lowest = record.values(RLRUN.name, "evaluation/episode_return_min")
    mean = record.values(RLRUN.name, "evaluation/episode_return_mean")
    evaluation = (
        f"- rollouts of rlrun's policies, {EVALUATION_EPISODES} episodes each: mean return "
        f"{summary.cell(mean, 1)}, lowest episode of a run {summary.cell(lowest, 1)}."
    )
    return f"{summary.markdown_table(header, rows)}\n\n{evaluation}\n{summary.footer(record)}"


def main() -> None:
    parser = harness.arguments_parser(__doc__, rounds=5)
    parser.add_argument(
        "--max-steps", type=int, default=500_000, help="peers give up here; default %(default)s"
    )
    options = parser.parse_args()
    # The file may change between sessions; half a record with each version would be useless.
    settings = {
        "max_steps": options.max_steps,
        "config": CONFIG.read_text() if CONFIG.exists() else "",
    }

    def measure(contender: Contender, round_: int) -> dict[str, Any]:
        if contender.peer == "rlrun":
            return solve_with_rlrun(round_, contender.arguments)
        task = ("--task", "solve", "--seed", str(round_), "--max-steps", str(options.max_steps))
        return harness.run_driver(contender, *task, timeout_s=TIMEOUT_S)

    record = harness.run_benchmark(BENCHMARK, CONTENDERS, options, settings, measure)
    harness.finish(record, table(record))


if __name__ == "__main__":
    main()
