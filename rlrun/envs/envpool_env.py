"""EnvPool's environments, stepped by threads of C++, as rlrun's vector environments.

Owns all calls of EnvPool, which is an extra and has its own ids and arguments.

In training, B sub-environments are one pool (`PooledVectorEnv`). A pool takes seeds only when it is
made: each sub-environment gets the seed of its first episode, and draws from the same generator in
later ones. By default a pool spends the step after an episode's end on the reset (gymnasium's
NEXT_STEP mode); here finished sub-environments are reset at once, by their ids, so that each row of
each step is a transition.

In evaluation each sub-environment is an environment by itself (`PoolSubEnv`), with a new pool for
each episode, so that an episode is a function of its seed, as evaluation promises.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rlrun.data.column_data import map_leaves
from rlrun.envs.env import EnvContext
from rlrun.envs.episode_vector_env import (
    Batched,
    BoolArray,
    EnvInfos,
    EpisodeVectorEnv,
    StepResult,
    bad_value_test,
    check_rows,
)
from rlrun.envs.errors import EnvError, EnvPhase
from rlrun.envs.horizon import time_limit

if TYPE_CHECKING:
    from rlrun.config.schema import EnvRunnersConfig, EnvSpec

_ENDLESS = 2**31 - 1  # EnvPool's number for "no time limit"
_LIMIT_IS_OUTSIDE = (
    "envpool.box2d",
    "envpool.classic_control",
    "envpool.mujoco.gym",
    "envpool.toy_text",
)
"""Families whose time limit can be applied here; rewards of MiniGrid, for one, depend on it."""
_BOOKKEEPING = ("env_id", "players", "elapsed_step")  # entries of infos that are not passed on
_WHOLE_POOL = -1  # index in errors that cannot be attributed to a sub-environment


@dataclass(frozen=True)
class PoolMaker:
    """Makes pools of one environment.

    Attributes:
        limit: steps after which an episode is truncated here; inf leaves that to the pool.
        kwargs: EnvPool's arguments.
    """

    env_id: str
    kwargs: dict[str, Any]
    limit: float
    observation_space: spaces.Space[Any]
    action_space: spaces.Space[Any]

    def __call__(self, seeds: Sequence[int]) -> tuple[Any, Batched, dict[str, Any]]:
        """A pool with a sub-environment for each seed, its first observations and infos."""
        import envpool

        numbers = [int(seed) for seed in seeds]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of bounds that lose precision
            pool: Any = envpool.make_gymnasium(
                self.env_id, num_envs=len(numbers), seed=numbers, **self.kwargs
            )
            return pool, *pool.reset()


def pool_maker(
    spec: EnvSpec, settings: EnvRunnersConfig, context: EnvContext, render_mode: str | None = None
) -> PoolMaker:
    """The maker of an env runner's pools.

    Args:
        settings: read are the horizon, and the CPUs of a remote runner, whose pool has as many
            threads.

    Raises:
        EnvError: EnvPool is not installed, lacks the environment, or refuses the arguments.
    """
    from rlrun.config.env_checks import check_envpool

    for finding in check_envpool(spec):
        reason = f"{'.'.join(map(str, finding.path))}: {finding.message}"
        raise EnvError(spec.use, "constructor", reason)
    import envpool

    kwargs = dict(context)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    if context.remote:
        kwargs.setdefault("num_threads", max(1, int(settings.cpus_per_env_runner)))
    limit = math.inf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of bounds that lose precision
        pool_spec = envpool.make_spec(spec.use, **kwargs)
        observation_space = _mended(pool_spec.observation_space)
        action_space = pool_spec.action_space
    if _family(spec.use).startswith(_LIMIT_IS_OUTSIDE):
        # A pool that reaches its limit no longer says whether the episode had ended there anyway.
        limit = time_limit(pool_spec.config.max_episode_steps, settings)
        kwargs["max_episode_steps"] = int(min(limit + 1, _ENDLESS))
    return PoolMaker(spec.use, kwargs, limit, observation_space, action_space)


def is_atari(use: str) -> bool:
    """Whether EnvPool's id is one of its Atari games."""
    return _family(use) == "envpool.atari"


def _family(use: str) -> str:
    from envpool.registration import registry

    module: str = registry.specs[use][0]
    return module


class PooledVectorEnv(EpisodeVectorEnv):
    """B sub-environments in one pool; see the module's docstring."""

    episode_seeds = False
    resets_single_envs = True
    every_step_counts = True
    offers_state = False
    failed_envs: Sequence[int] = ()
    valid: BoolArray | None = None

    def __init__(self, make: PoolMaker, num_envs: int, *, check: bool = True) -> None:
        self.num_envs = num_envs
        self.single_observation_space = make.observation_space
        self.single_action_space = make.action_space
        self._make, self._check = make, check
        self._pool: Any = None
        self._latest: Batched = None  # observations
        self._has_bad_values = bad_value_test(make.observation_space)
        self._vector_steps = 0

    def reset(self, seeds: Sequence[int]) -> Batched:
        """Make the pool and start an episode in each sub-environment; the observations [B, ...]."""
        self.close()  # the threads of the old pool end before new ones begin
        self._vector_steps = 0
        try:
            self._pool, observations, _ = self._make(seeds)
        except Exception as error:
            raise self._error(error, "reset") from None
        if self._check:
            self._check_rows(observations)
        self._latest = observations
        return observations

    def step(self, actions: Batched) -> StepResult:
        try:
            observations, rewards, terminateds, truncateds, infos = self._pool.step(actions)
        except Exception as error:
            raise self._error(error, "step") from None
        self._vector_steps += 1
        self._latest = observations
        if self._has_bad_values(observations):
            self._check_rows(observations)
        truncateds = truncateds | (infos["elapsed_step"] >= self._make.limit)
        kept = {name: values for name, values in infos.items() if name not in _BOOKKEEPING}
        infos_by_env = PoolInfos(kept, self.num_envs) if kept else None
        return observations, rewards.astype(np.float64), terminateds, truncateds, infos_by_env

    def reset_envs(self, mask: BoolArray, seeds: Sequence[int]) -> Batched:
        """Start an episode in the sub-environments of ``mask``, each from its own generator."""
        try:
            observations, infos = self._pool.reset(np.flatnonzero(mask))
        except Exception as error:
            raise self._error(error, "reset") from None

        def with_first(final: Any, first: Any) -> Any:
            rows = np.array(final)  # final observations stay as they are
            rows[infos["env_id"]] = first
            return rows

        self._latest = map_leaves(with_first, self._latest, observations)
        return self._latest

    def render(self) -> Any:
        return list(self._pool.render(np.arange(self.num_envs)))

    def close(self) -> None:
        """End the pool and its threads, which live as long as the object."""
        self._pool = None

    def _check_rows(self, observations: Batched) -> None:
        space, step = self.single_observation_space, self._vector_steps - 1
        check_rows(space, observations, self.num_envs, self._make.env_id, step=step)

    def _error(self, error: Exception, phase: EnvPhase) -> EnvError:
        step = self._vector_steps if phase == "step" else -1
        place = {"env_index": _WHOLE_POOL, "env_step": step}
        return EnvError.from_exception(error, self._make.env_id, phase, **place)


class PoolSubEnv(gymnasium.Env[Any, Any]):
    """One environment of EnvPool, whose episodes can be seeded: each has a pool made for it."""

    def __init__(self, make: PoolMaker) -> None:
        self.observation_space, self.action_space = make.observation_space, make.action_space
        self.render_mode = make.kwargs.get("render_mode")
        self._make = make
        self._pool: Any = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Make a pool for the episode; without a seed, from the generator of the last one given."""
        super().reset(seed=seed)
        number = int(self.np_random.integers(2**31)) if seed is None else seed
        self._pool, observations, infos = self._make([number])
        return map_leaves(itemgetter(0), observations), self._single_infos(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the pool of one sub-environment."""
        batch = map_leaves(lambda part: np.asarray(part)[np.newaxis], action)
        observations, rewards, terminateds, truncateds, infos = self._pool.step(batch)
        truncated = bool(truncateds[0]) or bool(infos["elapsed_step"][0] >= self._make.limit)
        observation, reward = map_leaves(itemgetter(0), observations), float(rewards[0])
        return observation, reward, bool(terminateds[0]), truncated, self._single_infos(infos)

    def render(self) -> Any:
        """The pool's frame."""
        frames = self._pool.render(0)
        return None if frames is None else frames[0]

    def close(self) -> None:
        """End the pool and its thread."""
        self._pool = None

    def _single_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        return {
            name: map_leaves(itemgetter(0), values)
            for name, values in infos.items()
            if name not in _BOOKKEEPING
        }


class PoolInfos(EnvInfos):
    """The arrays of a pool's infos; dicts of single environments are made on demand."""

    def __init__(self, arrays: dict[str, Any], num_envs: int) -> None:
        self._arrays, self._num_envs = arrays, num_envs

    @cached_property
    def by_env(self) -> dict[int, dict[str, Any]]:
        columns = {name: self[name] for name in self._arrays}
        return {
            env_index: {name: column[env_index] for name, column in columns.items()}
            for env_index in range(self._num_envs)
        }

    def __getitem__(self, key: str) -> list[Any]:
        values = self._arrays[key]
        return [map_leaves(itemgetter(env_index), values) for env_index in range(self._num_envs)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)


def _mended(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """``space`` with real bounds: some environments of C++ take its smallest float for the lowest.

    That float is the smallest *positive* one, so that no observation would be in the space.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _mended(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        low = np.where(space.low == np.finfo(space.dtype).tiny, -np.inf, space.low)
        return spaces.Box(low.astype(space.dtype), space.high, dtype=space.dtype.type)
    return space
