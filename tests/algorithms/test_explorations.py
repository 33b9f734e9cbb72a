"""Every way to explore goes on to the bit in a resumed run, and is another than the default."""

import functools

import pytest
from tiny import FILTERED, build, train

from rlrun.config.schema import ExplorationConfig

FALLING = [[0, 2.0], [100, 0.1]]
DEFAULT_EPSILON = ExplorationConfig().epsilon  # in place of the tiny experiment's
EXPLORATIONS = {
    "noise that lasts": ("SAC", {"training": {"noise_correlation": 0.9}}),
    "OrnsteinUhlenbeckNoise": ("SAC", {"random_steps": 50, "scale": FALLING}),
    "GaussianNoise": ("SAC", {"stddev": 0.3, "scale": FALLING}),
    "SoftQ": ("DQN", {"epsilon": DEFAULT_EPSILON, "random_steps": 75, "temperature": FALLING}),
    "Random": ("DQN", {"epsilon": DEFAULT_EPSILON}),
    "ParameterNoise": ("DQN", {"epsilon": [[0, 0.5], [100, 0.1]], "initial_stddev": 0.5}),
    "state-dependent noise": ("SAC", {"model": {"use_sde": True, "sde_sample_freq": 8}}),
    "state-dependent noise of episodes": ("PPO", {"model": {"use_sde": True}}),
    "noise in weights": ("SAC", {"exploration": {"type": "ParameterNoise", "random_steps": 20}}),
}


@functools.cache
def rows_of_its_own_exploration(name, env, runners):
    """Results of the first two iterations with the default exploration."""
    algorithm = build(name, env, runners=runners, **FILTERED)
    rows = train(algorithm, 2)
    algorithm.stop()
    return rows


@pytest.mark.parametrize("runners", [0, pytest.param(2, marks=pytest.mark.faults)])
@pytest.mark.parametrize("kind", EXPLORATIONS)
def test_every_way_to_explore_goes_on_to_the_bit(request, built, kind, runners):
    """From the middle of episodes; fragments are single steps."""
    if runners:
        request.getfixturevalue("shared_actors")
    name, settings = EXPLORATIONS[kind]
    sections = {"exploration": {"type": kind, **settings}} if kind.isalpha() else settings
    env = "CartPole-v1" if name == "DQN" else "Pendulum-v1"

    def exploring():
        return built(name, env, runners=runners, **sections, **FILTERED)

    straight, same = exploring(), exploring()
    before = train(straight, 2)
    assert before != rows_of_its_own_exploration(name, env, runners)
    state, weights = straight.get_state(), straight.get_weights()
    rows = train(straight, 2)
    assert before + rows == train(same, 4)
    resumed = same if runners else exploring()  # actors take seconds to start
    resumed.set_weights(weights)
    resumed.set_state(state)
    assert train(resumed, 2) == rows
