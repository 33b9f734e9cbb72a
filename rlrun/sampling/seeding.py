"""The seed tree: every random number of a run descends from the experiment's seed.

A leaf is addressed by what it is for, never by when it is drawn, so that a restarted runner, a
resumed run and a run with other evaluations in between all draw the same numbers.

    (seed, role, runner, lane, episode)   -> the reset seed of that episode
    (seed, role, runner, fragment)        -> the action noise of that fragment
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Role(IntEnum):
    """Who samples; training and evaluation never share a random number."""

    TRAIN = 0
    EVALUATION = 1


class _Purpose(IntEnum):
    EPISODE = 0
    ACTION_NOISE = 1
    LEARNER = 2
    WEIGHTS = 3
    EVALUATION_NOISE = 4


def _sequence(seed: int, purpose: _Purpose, *key: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(int(purpose), *key))


def episode_seed(seed: int, role: Role, runner: int, lane: int, episode: int) -> int:
    """The seed an environment is reset with for one episode; 31 bits, which every env accepts."""
    state = _sequence(seed, _Purpose.EPISODE, role, runner, lane, episode).generate_state(1)
    return int(state[0]) & 0x7FFFFFFF


def fragment_noise(seed: int, role: Role, runner: int, fragment: int) -> np.random.Generator:
    """The generator of one fragment's action noise."""
    return np.random.Generator(
        np.random.SFC64(_sequence(seed, _Purpose.ACTION_NOISE, role, runner, fragment))
    )


def episode_noise(seed: int, episode: int) -> np.random.Generator:
    """The generator of one evaluation episode's action noise, whatever lane plays it."""
    return np.random.Generator(np.random.SFC64(_sequence(seed, _Purpose.EVALUATION_NOISE, episode)))


def learner_rng(seed: int, iteration: int) -> np.random.Generator:
    """The generator that shuffles one iteration's minibatches."""
    return np.random.Generator(np.random.SFC64(_sequence(seed, _Purpose.LEARNER, iteration)))


def weights_seed(seed: int) -> int:
    """The seed of the initial weights, for torch's generator."""
    return int(_sequence(seed, _Purpose.WEIGHTS).generate_state(1, np.uint64)[0] >> np.uint64(1))


def evaluation_seed(seed: int) -> int:
    """The seed of evaluation episodes when the experiment names none."""
    return int(_sequence(seed, _Purpose.EPISODE, Role.EVALUATION).generate_state(1)[0])
