"""CleanRL's `ppo.py`, unchanged, out of the checkout that `CLEANRL_DIR` names.

The script runs in this process as `__main__`. Its own output is the instrument: it prints `SPS:`
at the end of every iteration and `episodic_return=` for every episode. The last return of
`SyncVectorEnv.step` in an iteration separates sampling from learning, so its GAE counts as
learning. It needs gymnasium 0.29: under 1.x the script runs, but never sees an episode end.
"""

import io
import os
import re
import runpy
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from benchmarks.memory import tree_pss_mb
from benchmarks.peers import driver
from benchmarks.peers.driver import WORKS, Iteration

EPISODE = re.compile(r"global_step=(\d+), episodic_return=\[?([-\d.e+]+)")


class Finished(Exception):  # noqa: N818 - it ends the script, it is not an error
    """Raised by a tap to end CleanRL's script when its measurement is complete."""


class OutputTap(io.TextIOBase):
    """Stands in for stdout and hands each whole line to `on_line`."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._pending = ""

    def write(self, text: str) -> int:
        self._pending += text
        while "\n" in self._pending:
            line, self._pending = self._pending.split("\n", 1)
            self._on_line(line)
        return len(text)


def run_script(
    arguments: list[str], on_line: Callable[[str], None], *, name: str = "ppo.py"
) -> None:
    """Runs a script with `arguments` until it ends or something in it raises `Finished`."""
    checkout = Path(os.environ["CLEANRL_DIR"]).resolve()
    script = checkout / "cleanrl" / name
    sys.path.append(str(checkout))  # some take their replay buffer from there
    stdout, directory = sys.stdout, os.getcwd()
    with (
        tempfile.TemporaryDirectory() as scratch
    ):  # it writes TensorBoard files into the working directory
        os.chdir(scratch)
        sys.argv = [str(script), "--no-cuda", *arguments]
        sys.stdout = OutputTap(on_line)  # type: ignore[assignment]
        try:
            runpy.run_path(str(script), run_name="__main__")
        except Finished:
            pass
        finally:
            sys.stdout = stdout
            os.chdir(directory)


class PhaseClock:
    """Times each iteration of the script: last env step returned, `SPS:` line printed."""

    def __init__(self) -> None:
        self.iterations: list[Iteration] = []
        self.ends: list[float] = []
        self._last_env_step = 0.0
        step = gym.vector.SyncVectorEnv.step

        def timed_step(envs: Any, actions: Any) -> Any:
            transition = step(envs, actions)
            self._last_env_step = time.perf_counter()
            return transition

        gym.vector.SyncVectorEnv.step = timed_step

    def end_iteration(self) -> None:
        now = time.perf_counter()
        # The first iteration has no start; it is part of the warm-up.
        start = self.ends[-1] if self.ends else self._last_env_step
        self.iterations.append(
            Iteration(
                WORKS["cartpole"].batch_size, self._last_env_step - start, now - self._last_env_step
            )
        )
        self.ends.append(now)


def equal_work_arguments(task: Any, total_steps: int) -> list[str]:
    """The work as arguments of ppo.py."""
    work = WORKS[task.work]
    if work.hidden != (64, 64):
        raise ValueError("ppo.py has its 64 x 64 tanh networks built in")
    environment = work.env
    if ":" in environment:
        environment = "Benchmark-v0"
        gym.register(environment, entry_point=driver.import_environment(work.env))
    options = {
        "env-id": environment,
        "seed": task.seed,
        "total-timesteps": total_steps,
        "num-envs": work.num_envs,
        "num-steps": work.rollout_length,
        "learning-rate": work.lr,
        "gamma": work.gamma,
        "gae-lambda": work.lambda_,
        "num-minibatches": work.batch_size // work.minibatch_size,
        "update-epochs": work.num_epochs,
        "clip-coef": work.clip,
        "ent-coef": work.entropy_coeff,
        "vf-coef": work.vf_coeff,
        "max-grad-norm": work.grad_clip,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [*words, "--no-anneal-lr", "--no-clip-vloss"]


def measure_throughput(task: Any) -> dict[str, Any]:
    """Rate of the iterations after the warm-up."""
    clock = PhaseClock()
    batch = WORKS["cartpole"].batch_size
    warmup = max(1, -(-task.warmup_steps // batch))
    measured = -(-task.steps // batch)

    def on_line(line: str) -> None:
        if line.startswith("SPS:"):
            clock.end_iteration()

    run_script(equal_work_arguments(task, (warmup + measured) * batch), on_line)
    seconds = clock.ends[-1] - clock.ends[warmup - 1]
    return driver.throughput(clock.iterations[warmup:], seconds=seconds)


def measure_start_up(task: Any) -> dict[str, Any]:
    """Time to the end of the first iteration, then the memory some iterations later."""
    result: dict[str, Any] = {}
    iterations = 0

    def on_line(line: str) -> None:
        nonlocal iterations
        if not line.startswith("SPS:"):
            return
        iterations += 1
        result.setdefault("first_result_s", driver.seconds_since_start())
        if iterations * WORKS["cartpole"].batch_size >= driver.MEMORY_STEPS:
            result["pss_mb"] = tree_pss_mb(os.getpid())
            raise Finished

    run_script(equal_work_arguments(task, 2 * driver.MEMORY_STEPS), on_line)
    return result


def solve(task: Any) -> dict[str, Any]:
    """Trains with ppo.py's defaults until solved."""
    result: dict[str, Any] = {"solved_s": None, "env_steps": 0}
    returns: deque[float] = deque(maxlen=driver.SOLVED_WINDOW)

    def on_line(line: str) -> None:
        episode = EPISODE.match(line)
        if not episode:
            return
        returns.append(float(episode[2]))
        result["env_steps"] = int(episode[1])
        full = len(returns) == driver.SOLVED_WINDOW
        if full and sum(returns) / len(returns) >= driver.SOLVED_RETURN:
            result["solved_s"] = driver.seconds_since_start()
            raise Finished
        if result["env_steps"] >= task.max_steps:
            raise Finished

    run_script(["--seed", str(task.seed), "--env-id", WORKS[task.work].env], on_line)
    return result


def main() -> None:
    task = driver.task_from_command_line(__doc__, works=("cartpole", "slow-cartpole"))
    torch.set_num_threads(1)
    measure = {
        "throughput": measure_throughput,
        "start_up": measure_start_up,
        "solve": solve,
    }[task.task]
    driver.report(
        **measure(task),
        versions={
            **driver.versions("torch", "gymnasium", "numpy"),
            "cleanrl": os.environ.get("CLEANRL_COMMIT", "unknown commit"),
        },
    )


if __name__ == "__main__":
    main()
