"""docs/callbacks.md: its example runs, and its tables have every method of `Callbacks`."""

import re
import sys
import types

import gymnasium as gym
import numpy as np
import pytest
from pages import blocks, execute, page

from rlrun import Callbacks, PPOConfig, load_experiment
from rlrun.config.registry import algorithm_class

PAGE = page("callbacks.md")


def test_its_tables_have_every_method():
    named = re.findall(r"^\| `(on_\w+)\(", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(name for name in vars(Callbacks) if name.startswith("on_"))


def test_its_example_runs_and_is_reported(built, tmp_path, monkeypatch):
    ((yaml,), (_, example)) = blocks(PAGE, "yaml"), blocks(PAGE, "python")
    for name in ("my", "my.code"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    execute(example, vars(sys.modules["my.code"]), "docs/callbacks.md")
    file = tmp_path / "page.yaml"
    sizes = "training: {train_batch_size: 128, minibatch_size: 64, num_epochs: 1}"
    file.write_text(f"algorithm: PPO\nenv: CartPole-v1\nseed: 1\n{sizes}\n{yaml}")
    experiment = load_experiment(file)
    algorithm = built(lambda: algorithm_class(experiment.algorithm)(experiment))
    result = algorithm.train()
    metrics = result["custom_metrics"]
    assert metrics["leaning_max"] > metrics["leaning_min"] >= 0
    assert result["hours"] < 1
    (env, *_) = algorithm.env_runner_group.foreach_env(lambda env: env.unwrapped.length)[0]
    assert env == 0.6


class Corridor(gym.Env):
    """Ends in success after as many steps as it is hard."""

    observation_space = gym.spaces.Box(0, 100, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    level = 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.float32([self.t, self.level]), {}

    def step(self, action):
        self.t += 1
        over = self.t >= self.level
        return np.float32([self.t, self.level]), 1.0, over, False, {"is_success": over}

    def set_level(self, level):
        self.level = level

    def get_state(self):
        return {"t": self.t, "level": self.level}

    def set_state(self, state):
        self.t, self.level = state["t"], state["level"]


def curriculum(env):
    names = {"__name__": "page"}
    execute(blocks(PAGE, "python")[0], names, "docs/callbacks.md")
    return (
        PPOConfig()
        .environment(env)
        .training(train_batch_size=64, minibatch_size=64, num_epochs=1)
        .debugging(seed=1)
        .callbacks(names["Curriculum"])
    )


def level_of(env):
    return env.unwrapped.level


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.faults)])
def test_its_curriculum_goes_on_where_a_checkpoint_was_taken(number, built, tmp_path):
    config = curriculum(Corridor)
    config.env_runners(num_env_runners=number, num_cpus_per_env_runner=0.1)

    def levels(algorithm):
        results = [algorithm.train() for _ in range(3)]
        return [(result["level"], result["episode_len_mean"]) for result in results]

    straight = built(config.copy())
    assert [level for level, _ in levels(straight)] == [1, 2, 3]
    straight.save(tmp_path / "three")
    resumed = built(config.copy())
    resumed.restore(tmp_path / "three")
    assert levels(resumed) == levels(straight)
    assert resumed.env_runner_group.foreach_env(level_of) == [[7]]


class Forgetful(Corridor):
    """The same without a state."""

    get_state = set_state = None


def test_its_curriculum_sets_the_level_again_where_environments_do_not_remember_it(built, tmp_path):
    config = curriculum(Forgetful)
    straight = built(config.copy())
    for _ in range(3):
        straight.train()
    straight.save(tmp_path / "three")
    resumed = built(config.copy())
    resumed.restore(tmp_path / "three")
    assert resumed.env_runner_group.foreach_env(level_of) == [[4]]
