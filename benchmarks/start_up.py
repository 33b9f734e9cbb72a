"""Seconds from process start to the first training result, and memory a few iterations later.

The first result is the end of the first training iteration of 1,024 env steps, imports, Ray and
actors included. Two ways in for rlrun: its Python API, as for the peers, and `rlrun train`, whose
first result is the first line of metrics.jsonl. Memory is the PSS of the driver, its actors and
all of Ray's processes together, after 10,240 env steps. `rlrun --help` is timed to its end.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import harness, summary
from benchmarks.harness import Contender, MeasurementError
from benchmarks.machine import REPOSITORY
from benchmarks.memory import tree_pss_mb
from benchmarks.peers.driver import MEMORY_STEPS, EqualWork
from benchmarks.record import Record

BENCHMARK = "start_up"
HELP = Contender("rlrun --help", "help", "rlrun")
COMMAND = Contender("rlrun train, 0 runners", "train", "rlrun")
COMMAND_2 = Contender("rlrun train, 2 runners", "train-2", "rlrun", ("--runners", "2"))
CONTENDERS = (
    HELP,
    COMMAND,
    COMMAND_2,
    harness.RLRUN,
    harness.RLRUN_2,
    harness.SB3,
    harness.CLEANRL,
    harness.RLLIB,
    harness.RLLIB_2,
)
TIMEOUT_S = 120.0


def time_help() -> dict[str, Any]:
    """Wall time of `rlrun --help`."""
    start = time.monotonic()
    harness.run_command([sys.executable, "-m", "rlrun", "--help"], timeout_s=30)
    return {"first_result_s": time.monotonic() - start}


def time_command(num_env_runners: int) -> dict[str, Any]:
    """Starts `rlrun train`, waits for its metrics.jsonl, measures memory, interrupts it."""
    with tempfile.TemporaryDirectory() as scratch:
        run_folder, output = Path(scratch) / "run", Path(scratch) / "output"
        start = time.monotonic()
        with output.open("w") as stream:
            process = subprocess.Popen(
                train_command(run_folder, num_env_runners),
                cwd=REPOSITORY,
                env=harness.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_for_results(process, run_folder, 1)
            first_result_s = time.monotonic() - start
            wait_for_results(process, run_folder, MEMORY_STEPS // EqualWork().batch_size)
            return {"first_result_s": first_result_s, "pss_mb": tree_pss_mb(process.pid)}
        except MeasurementError as error:
            raise MeasurementError(f"{error}\n{harness.tail(output.read_text())}") from error
        finally:
            end_politely(process)


def train_command(run_folder: Path, num_env_runners: int) -> list[str]:
    """`rlrun train` at equal work, until it is interrupted."""
    work = EqualWork()
    return [
        *(sys.executable, "-m", "rlrun", "train", "--algorithm", "PPO", "--env", "CartPole-v1"),
        *("--run-dir", str(run_folder), "--seed", "1"),
        f"env_runners.num_env_runners={num_env_runners}",
        f"env_runners.num_envs_per_env_runner={work.num_envs // max(1, num_env_runners)}",
        f"training.train_batch_size={work.batch_size}",
        f"training.minibatch_size={work.minibatch_size}",
        f"training.num_epochs={work.num_epochs}",
        "stop.env_steps=100_000_000",
    ]


def wait_for_results(process: "subprocess.Popen[bytes]", run_folder: Path, results: int) -> None:
    """Waits until metrics.jsonl has so many lines; raises if the process ends before."""
    metrics = run_folder / "metrics.jsonl"
    deadline = time.monotonic() + TIMEOUT_S
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= results):
        if process.poll() is not None:
            raise MeasurementError(f"exit code {process.returncode} before result {results}")
        if time.monotonic() > deadline:
            raise MeasurementError(f"no result {results} within {TIMEOUT_S:.0f} s")
        time.sleep(0.005)


def end_politely(process: "subprocess.Popen[bytes]") -> None:
    """Ctrl-C, so that it ends Ray too; killed if that does not help."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def table(record: Record) -> str:
    """Seconds and megabytes, and the ratios to rlrun's own."""
    rows = []
    for name in record.contenders:
        ours = harness.RLRUN_2 if "2 runners" in name else harness.RLRUN
        row = [name]
        for key, digits in (("first_result_s", 2), ("pss_mb/total", 0)):
            values = record.values(name, key)
            row.append(summary.cell(values, digits))
            row.append(summary.ratio_cell(values, record.values(ours.name, key)))
        rows.append([*row, summary.cell(record.values(name, "pss_mb/processes"))])
    header = [
        "",
        "first result, s",
        "x of rlrun's",
        "memory (PSS), MB",
        "x of rlrun's",
        "processes",
    ]
    return f"{summary.markdown_table(header, rows)}\n\n{summary.footer(record)}"


def main() -> None:
    parser = harness.arguments_parser(__doc__, rounds=5)
    options = parser.parse_args()
    settings = {"memory_after_env_steps": MEMORY_STEPS}

    def measure(contender: Contender, round_: int) -> dict[str, Any]:
        if contender is HELP:
            return time_help()
        if contender in (COMMAND, COMMAND_2):
            return time_command(2 if contender is COMMAND_2 else 0)
        task = ("--task", "start_up", "--seed", str(round_))
        return harness.run_driver(contender, *task, timeout_s=TIMEOUT_S)

    record = harness.run_benchmark(BENCHMARK, CONTENDERS, options, settings, measure)
    harness.finish(record, table(record))


if __name__ == "__main__":
    main()
