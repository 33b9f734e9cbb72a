"""Runs contenders one after the other, round by round, and records their reports.

A contender is one framework in one setup; its driver under `benchmarks/peers/` runs as a
subprocess in that framework's own virtual environment, with one thread per process.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY, commit
from benchmarks.peers.driver import RESULT_PREFIX
from benchmarks.record import Record, RecordError

HOME = Path(os.environ.get("RLRUN_BENCH_HOME", Path.home() / ".cache" / "rlrun-bench"))
CLEANRL_DIR = Path(os.environ.get("CLEANRL_DIR", HOME / "cleanrl"))
QUIET_LOAD = 0.8  # of the last minute; one busy process alone comes to 1
QUIET_WITHIN_S, PAUSE_S = 300, 10


class MeasurementError(Exception):
    """A contender failed; the message ends with the last lines it wrote."""


@dataclass(frozen=True)
class Contender:
    """One framework in one setup."""

    name: str  # "framework, setup", as in the tables
    key: str  # for --contenders
    peer: str  # its virtual environment; also the driver, unless another one is named
    arguments: tuple[str, ...] = ()
    driver: str | None = None  # module under benchmarks/peers

    @property
    def python(self) -> Path:
        """Interpreter of the framework's environment; rlrun is measured where we run."""
        if self.peer in ("rlrun", "parts"):
            return Path(sys.executable)
        return HOME / "venvs" / self.peer / "bin" / "python"

    def missing(self) -> str | None:
        """The reason why the contender cannot run on this machine."""
        if not self.python.exists():
            return f"{self.python} is not there: run benchmarks/peers/setup.sh {self.peer}"
        script = CLEANRL_DIR / "cleanrl" / "ppo.py"
        if self.peer == "cleanrl" and not script.exists():
            return (
                f"{script} is not there: run benchmarks/peers/setup.sh cleanrl or set CLEANRL_DIR"
            )
        return None


RLRUN = Contender("rlrun, 0 runners", "rlrun", "rlrun")
RLRUN_COMPILED = Contender("rlrun, 0 runners, compiled", "rlrun-compile", "rlrun", ("--compile",))
RLRUN_VECTOR = Contender(
    "rlrun, 0 runners, gymnasium's vector", "rlrun-vector", "rlrun", ("--vector-env",)
)
"""With the environments of the bare loop."""
RLRUN_1 = Contender("rlrun, 1 runner", "rlrun-1", "rlrun", ("--runners", "1"))
RLRUN_2 = Contender("rlrun, 2 runners", "rlrun-2", "rlrun", ("--runners", "2"))
RLRUN_1_AHEAD, RLRUN_2_AHEAD = (
    Contender(
        f"{one.name}, sampling ahead",
        f"{one.key}-ahead",
        "rlrun",
        (*one.arguments, "--sample-async"),
    )
    for one in (RLRUN_1, RLRUN_2)
)
SB3 = Contender("Stable-Baselines3", "sb3", "sb3")
CLEANRL = Contender("CleanRL ppo.py", "cleanrl", "cleanrl")
BARE = Contender("bare numpy loop", "bare", "rlrun", driver="bare_ppo")
"""The bound of what a framework can reach."""
RLLIB = Contender("RLlib, 0 runners", "rllib", "rllib")
RLLIB_2 = Contender("RLlib, 2 runners", "rllib-2", "rllib", ("--runners", "2"))


def environment() -> dict[str, str]:
    """Environment variables of every contender: one thread, no GPU, no usage reports.

    Libraries choose the kernels for the processor themselves: what forces OpenBLAS to those of
    another one, as some machines do for old versions of it, is left out. So is what keeps Python
    from writing bytecode: pip has compiled the peers, and each start of rlrun would compile torch.
    """
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    forced = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE")
    return {
        **{name: value for name, value in os.environ.items() if name not in forced},
        **dict.fromkeys(threads, "1"),
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # only silences a FutureWarning
        "PYTHONPATH": str(REPOSITORY),
        "CLEANRL_DIR": str(CLEANRL_DIR),
        "CLEANRL_COMMIT": commit(CLEANRL_DIR),
    }


def run_driver(contender: Contender, *arguments: str, timeout_s: float = 600) -> dict[str, Any]:
    """Runs the contender's driver and returns its report.

    Raises `MeasurementError` if it fails, reports nothing or takes longer than `timeout_s`.
    """
    module = f"benchmarks.peers.{contender.driver or contender.peer}"
    output = run_command(
        [str(contender.python), "-m", module, *contender.arguments, *arguments], timeout_s=timeout_s
    )
    for line in output.splitlines():
        if line.startswith(RESULT_PREFIX):
            result: dict[str, Any] = json.loads(line.removeprefix(RESULT_PREFIX))
            return result
    raise MeasurementError(f"no result in the output of {module}:\n{tail(output)}")


def run_throughput(
    contender: Contender, *arguments: str, steps: int, warmup_steps: int, seed: int
) -> dict[str, Any]:
    """The contender's rate over so many steps after a warm-up; see `run_driver`."""
    return run_driver(
        contender,
        *("--task", "throughput", "--seed", str(seed)),
        *("--steps", str(steps), "--warmup-steps", str(warmup_steps)),
        *arguments,
    )


def run_command(command: Sequence[str], *, timeout_s: float, directory: Path = REPOSITORY) -> str:
    """Output of a command that must succeed; its whole process group ends with the time limit."""
    with tempfile.TemporaryFile("w+") as output:  # a pipe could fill up or be kept open by Ray
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**environment(), "BENCHMARK_SPAWNED_AT": str(time.monotonic())},
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=timeout_s)
            problem = f"exit code {code}" if code else None
        except subprocess.TimeoutExpired:
            problem = f"not done after {timeout_s:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        text = output.read()
    if problem:
        raise MeasurementError(f"{problem}, and its output ended with\n{tail(text)}")
    return text


def tail(text: str, lines: int = 15) -> str:
    """The last lines of an output."""
    return "\n".join(text.splitlines()[-lines:])


def arguments_parser(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """Options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=rounds, help="default %(default)s")
    parser.add_argument("--contenders", nargs="+", metavar="KEY", help="only these")
    parser.add_argument("--resume", action="store_true", help="continue the results file")
    parser.add_argument("--out", type=Path, help="default benchmarks/results/<benchmark>.json")
    return parser


def choose(contenders: Sequence[Contender], keys: Sequence[str] | None) -> list[Contender]:
    """The contenders with these keys; those that are not installed are named and left out."""
    known = {contender.key: contender for contender in contenders}
    unknown = [key for key in keys or () if key not in known]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; contenders: {', '.join(known)}")
    chosen = []
    for contender in [known[key] for key in keys or known]:
        missing = contender.missing()
        if missing:
            print(f"left out: {contender.name}: {missing}", file=sys.stderr)
        else:
            chosen.append(contender)
    return chosen


def run_rounds(
    record: Record,
    contenders: Sequence[Contender],
    rounds: int,
    measure: Callable[[Contender, int], dict[str, Any]],
) -> None:
    """A B C, A B C, ...: adds the missing measurements to the record; failures do not stop it."""
    for round_ in range(1, rounds + 1):
        for contender in contenders:
            if record.has(contender.name, round_):
                continue
            load, start = os.getloadavg()[0], time.monotonic()
            try:
                outcome: dict[str, Any] = {"result": measure(contender, round_)}
                note = headline(outcome["result"])
            except MeasurementError as error:
                outcome = {"error": str(error)}
                note = f"FAILED\n{error}"
            seconds = time.monotonic() - start
            print(f"round {round_}/{rounds}  {contender.name:<28} {seconds:6.1f} s  {note}")
            sys.stdout.flush()
            record.add(contender.name, round_, load=load, **outcome)


def headline(result: dict[str, Any]) -> str:
    """The numbers at the top of a result, for the progress line."""
    numbers = [
        f"{key}={value:,.4g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in result.items()
        if isinstance(value, int | float)
    ]
    return " ".join(numbers)


def wait_until_quiet(
    load: Callable[[], tuple[float, ...]] = os.getloadavg,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Return once nothing else keeps the machine busy; the benchmark before may have done so.

    Raises:
        SystemExit: something still runs after `QUIET_WITHIN_S`.
    """
    for _ in range(QUIET_WITHIN_S // PAUSE_S):
        now, *_ = load()
        if now < QUIET_LOAD:
            return
        print(f"waiting for a quiet machine: load average {now:.1f}", file=sys.stderr)
        pause(PAUSE_S)
    raise SystemExit(
        f"the load average stays above {QUIET_LOAD:g}: speeds measured beside other work are not "
        "recorded in benchmarks/results; end that work, or name another file with --out"
    )


def run_benchmark(
    benchmark: str,
    contenders: Sequence[Contender],
    options: argparse.Namespace,
    settings: dict[str, Any],
    measure: Callable[[Contender, int], dict[str, Any]],
) -> Record:
    """Runs a benchmark from its command line to its table."""
    if options.out is None:
        wait_until_quiet()
    try:
        record = Record.open(benchmark, settings, path=options.out, resume=options.resume)
    except RecordError as error:
        raise SystemExit(str(error)) from error
    run_rounds(record, choose(contenders, options.contenders), options.rounds, measure)
    return record


def finish(record: Record, table: str) -> None:
    """Prints the table; exit code 1 when a contender failed."""
    print(f"\n{table}\n\nraw numbers: {record.path}")
    if record.errors():
        raise SystemExit(1)
