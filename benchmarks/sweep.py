"""What a sweep takes besides its trials: 64 trials of PPO on CartPole-v1, two at a time.

A trial is 100 iterations of 1,024 env steps, some seconds: longer ones lose less. Its own time is
that of its iterations, as its run folder says; all else is book-keeping: making environments and
networks, checkpoints at the end, the sweep's table, Ray Tune, and processes that wait for a trial.
Two minutes a round on two cores.
"""

import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import harness, summary
from benchmarks.harness import Contender, MeasurementError
from benchmarks.record import Record

BENCHMARK = "sweep"
TRIALS = 64
AT_ONCE = 2
ENV_STEPS = 102_400
TIMEOUT_S = 900.0
FILE = f"""
algorithm: PPO
env: CartPole-v1
stop: {{env_steps: {ENV_STEPS}}}
env_runners: {{num_env_runners: 0, num_envs_per_env_runner: 8}}
model: {{hidden: [64, 64]}}
training: {{train_batch_size: 1024, num_epochs: 4, minibatch_size: 256}}
sweep:
  space: {{training.lr: {{loguniform: [1e-4, 1e-3]}}}}
  trials: {TRIALS}
  concurrent: {AT_ONCE}
"""
RLRUN = Contender(f"rlrun sweep, {TRIALS} trials, {AT_ONCE} at a time", "rlrun", "rlrun")


def sweep(seed: int) -> dict[str, Any]:
    """Seconds of `rlrun sweep`, and of its trials' iterations."""
    with tempfile.TemporaryDirectory() as scratch:
        file, folder = Path(scratch) / "sweep.yaml", Path(scratch) / "run"
        file.write_text(FILE)
        command = [sys.executable, "-m", "rlrun", "sweep", str(file), f"seed={seed}"]
        start = time.time()
        harness.run_command([*command, "--run-dir", str(folder), "--quiet"], timeout_s=TIMEOUT_S)
        end = time.time()
        begins, ends = [], []
        for metrics in folder.glob("trials/*/metrics.jsonl"):
            row = json.loads(metrics.read_text().splitlines()[-1])
            if row["env_steps"] != ENV_STEPS:
                raise MeasurementError(f"{metrics} ends after {row['env_steps']} env steps")
            ends.append(metrics.stat().st_mtime)
            begins.append(ends[-1] - row["time_s"])
        if len(ends) != TRIALS:
            raise MeasurementError(f"{len(ends)} of {TRIALS} trials have a result")
        trials_s = math.fsum(ends) - math.fsum(begins)
        return {
            "process_s": end - start,
            "trials_s": trials_s,
            "before_s": min(begins) - start,
            "after_s": end - max(ends),
            "lost": 1.0 - trials_s / (AT_ONCE * (max(ends) - min(begins))),
            "lost_of_all": 1.0 - trials_s / (AT_ONCE * (end - start)),
        }


def table(record: Record) -> str:
    """Seconds, and the shares of the processes' time that no trial used."""
    name = RLRUN.name
    row = [name]
    for key in ("process_s", "trials_s", "before_s", "after_s"):
        row.append(summary.cell(record.values(name, key), 1))
    for key in ("lost", "lost_of_all"):
        percent = {round_: 100 * value for round_, value in record.values(name, key).items()}
        row.append(summary.cell(percent, 1))
    header = [
        *("", "seconds", "iterations of all trials, s", "until the first, s", "after the last, s"),
        *("lost between them, %", "lost of all, %"),
    ]
    return f"{summary.markdown_table(header, [row])}\n\n{summary.footer(record)}"


def main() -> None:
    options = harness.arguments_parser(__doc__, rounds=3).parse_args()
    settings = {"file": FILE}
    record = harness.run_benchmark(
        BENCHMARK, (RLRUN,), options, settings, lambda contender, round_: sweep(round_)
    )
    harness.finish(record, table(record))


if __name__ == "__main__":
    main()
