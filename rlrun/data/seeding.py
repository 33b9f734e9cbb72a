"""The seed tree: every random number of a run descends from the experiment's seed.

A leaf is addressed by its purpose, never by the time at which it is drawn, so that a restarted env
runner, a resumed run and a run with other evaluations in between all draw the same numbers.

    (seed, role, runner, sub-environment, episode)   -> the reset seed of that episode
    (seed, role, runner, fragment)        -> the action noise of that fragment
    (seed, role, runner, fragment)        -> the global generators of a remote runner; those of the
                                             training process: runner 0, and the iteration

rlrun draws nothing from the global generators (`random`, `numpy.random`, torch), but user code may.
They are seeded wherever it runs: permanently in actors and sub-processes, which belong to the run;
in the user's own process only while rlrun works there. Torch's is seeded where torch has been
imported. Algorithms may be built and trained in several threads of a process: what draws initial
weights from torch's generator, or replaces the generators' states, holds `GENERATORS_LOCK`. User
code in such threads shares the generators.
"""

from __future__ import annotations

import pickle
import random
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from enum import IntEnum
from hashlib import blake2b
from typing import Any
from zlib import crc32

import numpy as np
from numpy.random import mtrand

GENERATORS_LOCK = threading.RLock()
_SPACES = ("observation_space", "action_space", "observation_spaces", "action_spaces")


class Role(IntEnum):
    """The purpose of sampling; training and evaluation never share a random number."""

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
    GLOBAL_GENERATORS = 7
    SEARCH = 8


def policy_key(policy_id: str) -> int:
    """A policy's part of a leaf's address, if there are several policies."""
    return crc32(policy_id.encode())


def _sequence(seed: int, purpose: _Purpose, *key: int) -> np.random.SeedSequence:
    """``SeedSequence(seed, spawn_key=(purpose, *key))``, in a third of its time."""
    if seed.bit_length() > 128 or max(key, default=0).bit_length() > 32:
        return np.random.SeedSequence(seed, spawn_key=(int(purpose), *key))
    # What numpy makes of them: 32 bits a word, the seed filled up with zeros to 4 words.
    words = [seed >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    return np.random.SeedSequence(np.array([*words, purpose, *key], np.uint32))


def episode_seed(seed: int, role: Role, runner: int, env_index: int, episode: int) -> int:
    """The seed to reset an environment with for one episode; 31 bits, which all envs accept."""
    # Computed for every episode, so by a hash: a SeedSequence takes thirty times as long.
    key = struct.pack("<QQQQQ", seed & (2**64 - 1), role, runner, env_index, episode)
    return int.from_bytes(blake2b(key, digest_size=4).digest(), "little") & 0x7FFFFFFF


def other_seed(seed: int) -> int:
    """Another seed, for an episode whose reset fails with this one."""
    return (seed + 1) & 0x7FFFFFFF


def generators_seed(seed: int, *key: int) -> int:
    """The seed of the global generators, which user code may draw from; see `GlobalGenerators`.

    Args:
        key: role, runner, and fragment or iteration.
    """
    packed = struct.pack(f"<{len(key) + 2}Q", seed & (2**64 - 1), _Purpose.GLOBAL_GENERATORS, *key)
    return int.from_bytes(blake2b(packed, digest_size=4).digest(), "little")


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


def search_seed(seed: int, *key: int) -> int:
    """The seed of a sweep's draws: for a point, or for a trial of a population at a time."""
    return int(_sequence(seed, _Purpose.SEARCH, *key).generate_state(1)[0])


def connector_seed(seed: int, role: int, runner: int, *policy: int) -> int:
    """Seed of a runner's connectors, or of the connectors of one of its policies."""
    return int(_sequence(seed, _Purpose.CONNECTOR, role, runner, *policy).generate_state(1)[0])


class GlobalGenerators:
    """States of the three global generators, which `swap` exchanges with the present ones."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy: Any = np.random.MT19937(0)
        torch = _torch()
        self._torch = None if torch is None else torch.random.default_generator.get_state()

    def swap(self) -> None:
        """Put these states into effect, and keep the present ones instead.

        numpy loses the cached second number of a pair of normal ones on the way.
        """
        python, self._python = self._python, random.getstate()
        random.setstate(python)
        numpy, self._numpy = self._numpy, mtrand.get_bit_generator()
        mtrand.set_bit_generator(numpy)
        torch = _torch()
        if torch is not None:
            generator = torch.random.default_generator
            state, self._torch = self._torch, generator.get_state()
            if state is not None:  # torch was not imported yet
                generator.set_state(state)


class OwnGenerators:
    """Wraps an environment that draws from generators which `reset(seed=...)` does not seed.

    These are the global generators, of which it has its own states, and its spaces' generators.
    They are seeded with each episode, which is then a function of its seed and its actions,
    whatever other sub-environments draw. All attributes but `reset` and `step` are the
    environment's.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self._generators = GlobalGenerators()
        # Sub-environments may share the spaces of their class; each gets its own.
        for part, name, space in _spaces(env):
            with suppress(AttributeError):  # the space is a property
                setattr(part, name, deepcopy(space))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, *, seed: int) -> Any:
        """See gymnasium, or `MultiAgentEnv`."""
        self._generators.swap()
        try:
            seed_generators(seed)
            for _, _, space in _spaces(self.env):
                for one in [space] if hasattr(space, "seed") else space.values():  # by agent
                    one.seed(seed)
            return self.env.reset(seed=seed)
        finally:
            self._generators.swap()

    def step(self, action: Any) -> Any:
        """See gymnasium, or `MultiAgentEnv`."""
        self._generators.swap()
        try:
            return self.env.step(action)
        finally:
            self._generators.swap()


def seed_generators(seed: int) -> None:
    """Seed all global generators of this process; ``seed`` has 32 bits at most."""
    random.seed(seed)
    np.random.seed(seed)
    torch = _torch()
    if torch is not None:
        torch.random.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed all global generators for the ``with`` block, and restore their states after it.

    Generators of GPUs are not restored.
    """
    with GENERATORS_LOCK:
        numpy, other = np.random.get_state(), GlobalGenerators()
        other.swap()
        seed_generators(seed)
    try:
        yield
    finally:
        with GENERATORS_LOCK:
            other.swap()
            np.random.set_state(numpy)


def drawn_from(env: Any) -> tuple[Any, ...]:
    """A value that changes when ``env`` draws from a global generator or from its own spaces."""
    numpy: Any = np.random.get_state()
    torch = _torch()
    torch_state = b"" if torch is None else torch.random.default_generator.get_state().numpy()
    spaces = [pickle.dumps(space) for _, _, space in _spaces(env)]
    return random.getstate(), numpy[1].tobytes(), *numpy[2:], bytes(torch_state), *spaces


def _spaces(env: Any) -> Iterator[tuple[Any, str, Any]]:
    """The spaces of an environment, without its wrappers: their owner, attribute and value."""
    for part in getattr(env, "copies", {"": env}).values():
        inner = getattr(part, "unwrapped", part)
        for name in _SPACES:
            if (space := getattr(inner, name, None)) is not None:
                yield inner, name, space


def _torch() -> Any:
    return sys.modules.get("torch")
