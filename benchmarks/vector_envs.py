"""Steps of rlrun's vectorisations alone, without a policy: one by one, and in EnvPool's threads.

python -m benchmarks.vector_envs        # half a minute; needs the extra envpool
"""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.envs.vector_env import make_vector_env

NUM_ENVS = (8, 32, 128)
MODES = ("sync", "envpool")
ROUNDS = 5
SECONDS = 0.8


def env_steps_per_s(envs: Any) -> float:
    """Random actions; the resets of finished episodes are part of the time."""
    seeds = list(range(envs.num_envs))
    actions = np.random.default_rng(0).integers(0, 2, (512, envs.num_envs))
    envs.reset(seeds)
    steps, start = 0, perf_counter()
    while perf_counter() - start < SECONDS:
        _, _, terminateds, truncateds, _ = envs.step(actions[steps % len(actions)])
        done = terminateds | truncateds
        if done.any():
            envs.reset_envs(done, seeds)
        steps += 1
    return steps * envs.num_envs / (perf_counter() - start)


def main() -> None:
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):  # in turns, so that a slow moment of the machine affects all
        for num_envs in NUM_ENVS:
            for mode in MODES:
                settings = EnvRunnersConfig(gym_env_vectorize_mode=mode)
                envs = make_vector_env(EnvSpec(use="CartPole-v1"), num_envs, settings)
                found.setdefault((mode, num_envs), []).append(env_steps_per_s(envs))
                envs.close()
    print(f"| CartPole-v1, env steps/s, median of {ROUNDS} | ", end="")
    print(" | ".join(f"{num_envs} sub-environments" for num_envs in NUM_ENVS), "|")
    print("|---|" + "---:|" * len(NUM_ENVS))
    for mode in MODES:
        print(
            f"| mode `{mode}` |",
            *(f"{median(found[mode, num_envs]):,.0f} |" for num_envs in NUM_ENVS),
        )


if __name__ == "__main__":
    main()
