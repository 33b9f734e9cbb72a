"""Shared by all drivers: their task, their clock, and the one JSON line that they print.

Must not import any framework: it runs in all the peers' environments.

Tasks
  throughput  run `warmup_steps` and then `steps` env steps; report the rate of the latter
  start_up    report seconds from process start to the end of the first training iteration,
              then, `memory_steps` env steps later, the memory of the whole process tree
  solve       train until the mean return of the last 100 episodes is 475; report seconds from
              process start
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from benchmarks.memory import tree_pss_mb

LSTM_SIZE = 64
RESULT_PREFIX = "BENCHMARK-RESULT "
MEMORY_STEPS = 10_240
SOLVED_RETURN = 475.0
SOLVED_WINDOW = 100


@dataclass(frozen=True)
class EqualWork:
    """The settings every contender of an equal-work measurement trains with."""

    env: str = "CartPole-v1"
    """A gymnasium id, or ``module:Class``."""
    network: str = "mlp"
    """``mlp``: two of `hidden`, for policy and values; ``lstm``: `LSTM_SIZE` units for both;
    ``cnn``: Mnih et al.'s (2015) for both, after their preprocessing of Atari games."""
    agents: int = 1
    """Agents of an environment, all with one policy; a row of a batch is a step of one of them."""
    vf_clip: float | None = None
    kl_coeff: float = 0.0
    """Start of the adaptive weight of KL(old || new policy); Stable-Baselines3 has no such term."""
    num_envs: int = 8
    rollout_length: int = 128
    hidden: tuple[int, ...] = (64, 64)
    lr: float = 2.5e-4
    gamma: float = 0.99
    lambda_: float = 0.95
    num_epochs: int = 4
    minibatch_size: int = 256
    clip: float = 0.2
    entropy_coeff: float = 0.01
    vf_coeff: float = 0.5
    grad_clip: float = 0.5

    def settings(self) -> dict[str, Any]:
        """All of them, as JSON has them."""
        return {**asdict(self), "hidden": list(self.hidden)}

    @property
    def batch_size(self) -> int:
        """Rows of one iteration: env steps, if there is one agent."""
        return self.num_envs * self.agents * self.rollout_length


WORKS = {
    "cartpole": EqualWork(),
    "slow-cartpole": EqualWork(env="benchmarks.environments:slow_cartpole"),
    "value-clipping": EqualWork(vf_clip=0.2),
    "kl": EqualWork(kl_coeff=0.2),
    "pendulum": EqualWork(env="Pendulum-v1"),
    "halfcheetah": EqualWork(env="HalfCheetah-v5"),
    "lstm": EqualWork(network="lstm"),
    "agents": EqualWork(env="benchmarks.agents:CartPoles", agents=4, num_envs=2),
    "pong": EqualWork(env="PongNoFrameskip-v4", network="cnn"),
}
"""By the name that drivers are given."""


def task_from_command_line(
    description: str | None, works: Iterable[str] = WORKS
) -> argparse.Namespace:
    """The task in the arguments, the same for all drivers.

    Args:
        works: names of those that the driver can train.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--task", choices=["throughput", "start_up", "solve"], required=True)
    parser.add_argument("--runners", type=int, default=0, help="Ray actors that sample")
    parser.add_argument("--sample-async", action="store_true", help="rlrun: sample while learning")
    parser.add_argument("--compile", action="store_true", help="compile the update")
    parser.add_argument("--vector-env", action="store_true", help="rlrun: gymnasium's own vector")
    parser.add_argument("--bfloat16", action="store_true", help="rlrun: convolutions in bfloat16")
    parser.add_argument("--work", choices=[*works], default="cartpole", help="what is trained")
    parser.add_argument("--warmup-steps", type=int, default=8_192)
    parser.add_argument("--steps", type=int, default=81_920)
    parser.add_argument("--max-steps", type=int, default=500_000, help="give up solving here")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def seconds_since_start() -> float:
    """Seconds since the parent started this process, by the time that it passed; with imports."""
    return time.monotonic() - float(os.environ["BENCHMARK_SPAWNED_AT"])


def versions(*distributions: str) -> dict[str, str]:
    """Installed versions of the named distributions, and of Python."""
    found = {"python": sys.version.split()[0]}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def report(**result: Any) -> None:
    """Hands `result` to the harness: the one line of the output that it reads."""
    print(f"\n{RESULT_PREFIX}{json.dumps(result)}", flush=True)


def import_environment(name: str) -> Any:
    """The class behind `module:Class`."""
    module, _, attribute = name.partition(":")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


@dataclass
class Iteration:
    """One training iteration; the two times are None where the peer hides them."""

    env_steps: int
    sampling_s: float | None = None
    learning_s: float | None = None


def measure_throughput(
    train: Callable[[], Iteration], *, warmup_steps: int, steps: int
) -> dict[str, float | int | None]:
    """Calls `train` for `warmup_steps`, then for at least `steps`; times the second part."""
    done = 0
    while done < warmup_steps:
        done += train().env_steps
    iterations: list[Iteration] = []
    start, done = time.perf_counter(), 0
    while done < steps:
        iterations.append(train())
        done += iterations[-1].env_steps
    return throughput(iterations, seconds=time.perf_counter() - start)


def throughput(iterations: list[Iteration], *, seconds: float) -> dict[str, float | int | None]:
    """Rate over `iterations` that took `seconds`, and milliseconds per 1,024 env steps."""
    env_steps = sum(iteration.env_steps for iteration in iterations)
    return {
        "env_steps": env_steps,
        "seconds": seconds,
        "env_steps_per_s": env_steps / seconds,
        "sampling_ms": _per_1024([i.sampling_s for i in iterations], env_steps),
        "learning_ms": _per_1024([i.learning_s for i in iterations], env_steps),
        "total_ms": seconds * 1e3 * 1024 / env_steps,
    }


def _per_1024(seconds: list[float | None], env_steps: int) -> float | None:
    known = [value for value in seconds if value is not None]
    return sum(known) * 1e3 * 1024 / env_steps if len(known) == len(seconds) else None


def measure_start_up(train: Callable[[], Iteration]) -> dict[str, Any]:
    """Time to the first result, then the memory once training has settled."""
    done = train().env_steps
    first_result_s = seconds_since_start()
    while done < MEMORY_STEPS:
        done += train().env_steps
    return {"first_result_s": first_result_s, "pss_mb": tree_pss_mb(os.getpid())}
