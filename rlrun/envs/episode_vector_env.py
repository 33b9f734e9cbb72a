"""`EpisodeVectorEnv`: the sampling loop's interface to several copies of an environment.

The loop needs no autoreset modes: a step returns the final observation of a finished
sub-environment, and the loop requests the next episode. Owns the interface and the checks of
returned observations; `serial_vector_env`, `native_vector_env` and `envpool_env` implement it.
Knows nothing of policies, batches, connectors or Ray.

    B        number of sub-environments (copies of the environment)
    env index index of a copy, 0..B-1
    batched  one array [B, ...], or for Dict and Tuple spaces a dict or tuple of them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from rlrun.envs.env import check_observation

Batched = Any
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
FloatArray = np.ndarray[Any, np.dtype[np.float64]]


class EnvInfos(Mapping[str, list[Any]]):
    """The info dicts of one vector step, put together on demand.

    ``infos[key]`` is a list [B], None in environments without that key; ``infos.by_env[env_index]``
    is a sub-environment's own dict, missing where it was empty.
    """

    def __init__(self, by_env: dict[int, dict[str, Any]], num_envs: int) -> None:
        self._by_env = by_env
        self._num_envs = num_envs

    @property
    def by_env(self) -> dict[int, dict[str, Any]]:
        """Each sub-environment's own dict."""
        return self._by_env

    def __getitem__(self, key: str) -> list[Any]:
        if not any(key in info for info in self.by_env.values()):
            raise KeyError(key)
        return [self.by_env.get(env_index, {}).get(key) for env_index in range(self._num_envs)]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key for info in self.by_env.values() for key in info))

    def __len__(self) -> int:
        return sum(1 for _ in self)


StepResult = tuple[Batched, FloatArray, BoolArray, BoolArray, EnvInfos | None]


class EpisodeVectorEnv(Protocol):
    """B environments in lockstep, whose episodes the caller starts.

    All returned arrays may be buffers that the next call overwrites.

    Attributes:
        num_envs: B.
        single_observation_space: observation space of one sub-environment.
        single_action_space: action space of one sub-environment.
        episode_seeds: whether `reset_envs` gives each episode its own seed. If so an episode is a
            function of its seed and its actions.
        resets_single_envs: whether `reset_envs` can also end an episode that is running.
        offers_state: whether `get_state` returns a state, to be restored after a reset.
        every_step_counts: whether `valid` is always None and `failed_envs` always empty.
        failed_envs: sub-environments that raised in the last step and were rebuilt; the caller
            resets them. Always empty without a `Rebuilder` that tolerates failures.
        valid: bool [B] after each step; False where the step was the environment's own reset, and
            the row is not a transition. None: all rows are transitions.
    """

    num_envs: int
    single_observation_space: spaces.Space[Any]
    single_action_space: spaces.Space[Any]
    episode_seeds: bool
    resets_single_envs: bool
    offers_state: bool
    every_step_counts: bool
    failed_envs: Sequence[int]
    valid: BoolArray | None

    def reset(self, seeds: list[int]) -> Batched:
        """Start an episode in each sub-environment; the observations [B, ...].

        Where a rebuilt environment raises with the same seed again, another one replaces it in
        ``seeds``.
        """

    def step(self, actions: Batched) -> StepResult:
        """Step each environment: observations, rewards [B] float64, terminateds, truncateds, infos.

        The observation of a finished sub-environment is the last one of its episode; infos are None
        if all sub-environments' were empty.

        Raises:
            EnvError: a sub-environment raised, or returned NaN or an observation outside its space.
        """

    def reset_envs(self, mask: BoolArray, seeds: list[int]) -> Batched | None:
        """Start an episode in the environments of ``mask``, each with its own of the B ``seeds``.

        As in `reset`, one with which even a rebuilt environment raises is replaced in ``seeds``.

        Returns:
            Present observations [B, ...], the first ones of new episodes in the rows of ``mask``;
            None if the environment resets itself in the next step, whose row is then not `valid`.
        """

    def repeat(self, actions: Batched, due: BoolArray, seeds: list[int]) -> Batched:
        """Step the environments of ``due``; returns the observations [B, ...].

        The others stay at the beginning of their episodes, which have these ``seeds``. Called only
        if `episode_seeds` is true. Here all make a step, and the others are then reset.
        """
        observations = self.step(actions)[0]
        return observations if due.all() else self.reset_envs(~due, seeds)

    def render(self) -> Any:
        """The frames of the sub-environments' own render functions, as a sequence [B]."""

    def get_state(self) -> Any:
        """The state of all sub-environments, or None if the environment does not offer it."""
        return None

    def set_state(self, state: Any) -> None:
        """Go on from `get_state`."""
        raise TypeError(f"a {type(self).__name__} takes no state")

    def close(self) -> None:
        """Close all sub-environments."""


def replay_actions(
    envs: EpisodeVectorEnv,
    to_env: Callable[[Any], Batched],
    seeds: list[int],
    actions: Sequence[np.ndarray[Any, Any] | None],
    lives: Sequence[Sequence[int]],
) -> tuple[Batched, BoolArray]:
    """Reset each sub-environment with its seed and repeat its actions.

    One with fewer actions starts later: all arrive at the same step.

    Args:
        to_env: turns actions ``[B, ...]`` into the environments'.
        actions: actions of each sub-environment ``[n, ...]``, or None for none.
        lives: numbers of actions after which each was reset in the middle of its game.

    Returns:
        The observations ``[B, ...]``; and bool ``[B]``, whether an environment raised and was
        rebuilt: its remaining actions are not repeated, and the caller resets it.
    """
    failed = np.zeros(len(seeds), np.bool_)
    lengths = np.array([0 if part is None else len(part) for part in actions])
    longest = int(lengths.max(initial=0))
    observations = envs.reset(seeds)
    if longest == 0:
        return observations, failed
    template = next(part for part in actions if part is not None)
    table = np.broadcast_to(template[0], (longest, len(seeds), *template.shape[1:])).copy()
    for i, part in enumerate(actions):
        if part is not None:
            table[longest - len(part) :, i] = part
    for step in range(longest):
        due = (longest - lengths <= step) & ~failed
        observations = envs.repeat(to_env(table[step]), due, seeds)
        failed[list(envs.failed_envs)] = True
        done = step + 1 - (longest - lengths)
        lost = np.array([n in steps for n, steps in zip(done, lives, strict=True)]) & due & ~failed
        if lost.any():
            observations = envs.reset_envs(lost, seeds)
    return observations, failed


def check_rows(
    space: spaces.Space[Any], batch: Batched, num_envs: int, env_id: str, *, step: int = -1
) -> None:
    """Raise an `EnvError` for the first row of a batched observation that is not in ``space``."""
    for env_index, row in enumerate(iterate(batch_space(space, num_envs), batch)):
        check_observation(space, row, env_id, step=step, env_index=env_index)


def bad_value_test(space: spaces.Space[Any]) -> Callable[[Batched], bool]:
    """A cheap test of a batched observation for values that must stop the run.

    These are NaN and infinity in arrays of floats, and indices out of range of a Discrete or
    MultiDiscrete space. The test runs in every vector step and takes a microsecond for each leaf of
    the space; images cost nothing. It does not check a Box's bounds: many environments exceed them
    a little, which does not harm learning.
    """
    if isinstance(space, spaces.Dict):
        return _any_part([(key, bad_value_test(part)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return _any_part(list(enumerate(map(bad_value_test, space.spaces))))
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return _index_test(space)
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return FiniteTest()
    return _nothing_to_test


def _nothing_to_test(_: Batched) -> bool:
    return False


class FiniteTest:
    """A test of a batched array of floats for NaN and infinities: x . 0 is 0 unless there is one.

    It is a single BLAS call, and exact. An infinity also makes numpy warn of an invalid value.
    Float64 is cast, since policies compute in float32, in which more numbers are infinite.
    """

    def __init__(self) -> None:
        self._zeros = np.zeros(0, np.float32)

    def __call__(self, batch: np.ndarray[Any, Any]) -> bool:
        """Whether an entry is not finite."""
        if self._zeros.size != batch.size:
            self._zeros = np.zeros(batch.size, np.float32)
        return bool(batch.ravel().astype(np.float32, copy=False).dot(self._zeros) != 0.0)


def _index_test(space: spaces.Discrete | spaces.MultiDiscrete) -> Callable[[Batched], bool]:
    low = space.start
    high = low + (space.n if isinstance(space, spaces.Discrete) else space.nvec)
    return lambda batch: bool(((batch < low) | (batch >= high)).any())


def _any_part(parts: list[tuple[Any, Callable[[Batched], bool]]]) -> Callable[[Batched], bool]:
    tested = [(key, test) for key, test in parts if test is not _nothing_to_test]
    if not tested:
        return _nothing_to_test
    return lambda batch: any(test(batch[key]) for key, test in tested)
