"""Every file in configs/ has a header with its command, resolves, and trains two iterations."""

from functools import cache

import pytest
from source_tree import ROOT

from rlrun import load_experiment
from rlrun.config.registry import algorithm_class

CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))

# The same computation, small enough for a test; without Ray, which is tested with the actors.
TINY = [
    "env_runners.num_env_runners=0",
    "env_runners.num_envs_per_env_runner=2",
    "training.train_batch_size=32",
    "evaluation.interval=1000",
    "report.min_sample_timesteps_per_iteration=0",
]
TINY_TRAINING = {
    "minibatch_size": 16,
    "num_epochs": 1,
    "training_intensity": 4,
    "num_steps_sampled_before_learning_starts": 48,
}


def _name(path):
    return path.relative_to(ROOT).as_posix()


@cache
def _loaded(path):
    return load_experiment(path)


def test_there_are_configs():
    assert CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=_name)
def test_header_gives_the_command_and_what_it_reaches(path):
    header = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        header.append(line)
    assert f"rlrun train {_name(path)}" in "\n".join(header)
    assert sum(line.startswith("# reached: ") for line in header) == 1


@pytest.mark.parametrize("path", CONFIGS, ids=_name)
def test_config_resolves_as_it_is(path):
    assert _loaded(path).stop, "a config without a stop criterion never ends"


@pytest.mark.parametrize("path", CONFIGS, ids=_name)
def test_config_trains_two_iterations(path):
    own = type(_loaded(path).training).model_fields
    tiny = [f"training.{key}={value}" for key, value in TINY_TRAINING.items() if key in own]
    config = load_experiment(path, [*TINY, *tiny])
    algorithm = algorithm_class(config.algorithm)(config)
    try:
        results = [algorithm.train() for _ in range(2)]
    finally:
        algorithm.stop()
    assert [result["env_steps"] for result in results] == [32, 64]
    assert all(learner["num_agent_steps_trained"] for learner in results[1]["learners"].values())
