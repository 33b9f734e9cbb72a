"""The seed tree: every random number of a run descends from the experiment's seed.

A leaf is addressed by what it is for, never by when it is drawn, so that a restarted runner, a
resumed run and a run with other evaluations in between all draw the same numbers.

    (seed, role, runner, sub-environment, episode)   -> the reset seed of that episode
    (seed, role, runner, fragment)        -> the action noise of that fragment
"""

from __future__ import annotations

import struct
from enum import IntEnum
from hashlib import blake2b
from zlib import crc32

import numpy as np


class Role(IntEnum):
    """What samples; training and evaluation never share a random number."""

    TRAIN = 0
    EVALUATION = 1


class _Purpose(IntEnum):
    ACTION_NOISE = 0
    LEARNER = 1
    WEIGHTS = 2
    EVALUATION_NOISE = 3
    CONNECTOR = 4
    AGENT_NOISE = 5
    AGENT_MAPPING = 6


def policy_key(policy_id: str) -> int:
    """What a policy's id adds to a leaf's address, where there are several policies."""
    return crc32(policy_id.encode())


def _sequence(seed: int, purpose: _Purpose, *key: int) -> np.random.SeedSequence:
    """``SeedSequence(seed, spawn_key=(purpose, *key))``, in a third of its time."""
    if seed.bit_length() > 128 or max(key, default=0).bit_length() > 32:
        return np.random.SeedSequence(seed, spawn_key=(int(purpose), *key))
    # What numpy makes of them: 32 bits a word, the seed filled up with zeros to 4 words.
    words = [seed >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    return np.random.SeedSequence(np.array([*words, purpose, *key], np.uint32))


def episode_seed(seed: int, role: Role, runner: int, env_index: int, episode: int) -> int:
    """The seed an environment is reset with for one episode; 31 bits, which every env accepts."""
    # Once an episode, so a hash rather than a SeedSequence, which takes thirty times as long.
    key = struct.pack("<QQQQQ", seed & (2**64 - 1), role, runner, env_index, episode)
    return int.from_bytes(blake2b(key, digest_size=4).digest(), "little") & 0x7FFFFFFF


def fragment_noise(
    seed: int, role: Role, runner: int, fragment: int, *policy: int
) -> np.random.Generator:
    """The generator of one fragment's noise, by policy if there are several."""
    sequence = _sequence(seed, _Purpose.ACTION_NOISE, role, runner, fragment, *policy)
    return np.random.Generator(np.random.SFC64(sequence))


def episode_noise(seed: int, episode: int) -> np.random.Generator:
    """The generator of one evaluation episode's action noise, in any sub-environment."""
    return np.random.Generator(np.random.SFC64(_sequence(seed, _Purpose.EVALUATION_NOISE, episode)))


def agent_noise(episode_seed: int, agent: int) -> np.random.Generator:
    """The generator of one agent's action noise in the episode that was reset with this seed."""
    return np.random.Generator(
        np.random.SFC64(_sequence(episode_seed, _Purpose.AGENT_NOISE, agent))
    )


def mapping_rng(episode_seed: int) -> np.random.Generator:
    """The generator of an episode's choices of policies."""
    return np.random.Generator(np.random.SFC64(_sequence(episode_seed, _Purpose.AGENT_MAPPING)))


def learner_rng(seed: int, iteration: int, *policy: int) -> np.random.Generator:
    """The generator that shuffles one iteration's minibatches, by policy if there are several."""
    sequence = _sequence(seed, _Purpose.LEARNER, iteration, *policy)
    return np.random.Generator(np.random.SFC64(sequence))


def weights_seed(seed: int, *policy: int) -> int:
    """The seed of the initial weights, for torch's generator; by policy if there are several."""
    sequence = _sequence(seed, _Purpose.WEIGHTS, *policy)
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def evaluation_seed(seed: int) -> int:
    """The seed of evaluation episodes when the experiment names none."""
    return int(_sequence(seed, _Purpose.EVALUATION_NOISE).generate_state(1)[0])


def connector_seed(seed: int, role: int, runner: int, *policy: int) -> int:
    """Seed of a runner's connectors, or of the connectors of one of its policies."""
    return int(_sequence(seed, _Purpose.CONNECTOR, role, runner, *policy).generate_state(1)[0])
