"""The environments of a work alone, with random actions: what no framework can do without."""

from typing import Any

import gymnasium as gym

from benchmarks.peers import driver
from benchmarks.peers.driver import WORKS, Iteration


def trainer(task: Any) -> Any:
    """A function that makes as many steps as one iteration has."""
    work = WORKS[task.work]
    named = ":" in work.env
    make = driver.import_environment(work.env) if named else lambda: gym.make(work.env)
    environments = [make() for _ in range(work.num_envs)]
    for index, environment in enumerate(environments):
        environment.reset(seed=task.seed + index)

    # Drawn beforehand: that takes as long as some environments' steps.
    steps = [[random_action(each) for each in environments] for _ in range(work.rollout_length)]

    def train() -> Iteration:
        for actions in steps:
            for environment, action in zip(environments, actions, strict=True):
                _, _, terminated, truncated, _ = environment.step(action)
                if ended(terminated) or ended(truncated):
                    environment.reset()
        return Iteration(work.batch_size)

    return train


def random_action(environment: Any) -> Any:
    """An action, or one for each agent."""
    if hasattr(environment, "possible_agents"):
        agents = environment.possible_agents
        return {agent: environment.action_space(agent).sample() for agent in agents}
    return environment.action_space.sample()


def ended(flag: Any) -> bool:
    """Whether the episode is over, for one agent or all of them."""
    return any(flag.values()) if isinstance(flag, dict) else bool(flag)


def main() -> None:
    task = driver.task_from_command_line(__doc__)
    measured = driver.measure_throughput(
        trainer(task), warmup_steps=task.warmup_steps, steps=task.steps
    )
    driver.report(**measured, versions=driver.versions("gymnasium", "numpy"))


if __name__ == "__main__":
    main()
