"""The default vectorisation: sub-environments stepped one after the other, or in processes.

Owns what a vector step makes of single environments: rows in one buffer, checks of what they
return, and new environments in place of those that raise. Knows nothing of policies, batches,
connectors or Ray.

    B  number of sub-environments
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from rlrun.data.seeding import other_seed
from rlrun.envs.env import form_problem, narrows, observation_problem, stack_observations
from rlrun.envs.env_state import STATE_CALLS
from rlrun.envs.episode_vector_env import (
    Batched,
    BoolArray,
    EnvInfos,
    EpisodeVectorEnv,
    StepResult,
    bad_value_test,
    check_rows,
)
from rlrun.envs.errors import RAISED, EnvError, EnvPhase, TooManyFailures
from rlrun.envs.rebuilder import Rebuilder
from rlrun.envs.watchdog import close_all


class SerialVectorEnv(EpisodeVectorEnv):
    """Steps the sub-environments one after the other in this process; the default.

    Observations are written in place into one buffer without further copies, every episode has its
    own seed, and an exception of the environment is raised as an `EnvError`. If the ``rebuilder``
    tolerates it, the environment is rebuilt by ``make`` instead; after a step it is then one of
    `failed_envs`, which the caller resets.
    """

    episode_seeds = every_step_counts = True
    resets_single_envs = True
    valid: BoolArray | None = None

    def __init__(
        self,
        envs: Sequence[Any],
        env_id: str,
        *,
        check: bool = True,
        make: Callable[[int], Any] | None = None,
        rebuilder: Rebuilder | None = None,
        offers_state: bool = False,
    ) -> None:
        self.envs = list(envs)
        self.failed_envs: Sequence[int] = ()
        self._make, self._rebuilder = make, rebuilder or Rebuilder(env_id)
        self.num_envs = len(self.envs)
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self._env_id, self.offers_state = env_id, offers_state
        self._check = check
        self._require_equal_spaces()
        self._step_functions = [env.step for env in self.envs]
        size = self.num_envs
        self._buffer: Any = create_empty_array(self.single_observation_space, n=size, fn=np.zeros)
        self._in_place = isinstance(self._buffer, np.ndarray)
        is_box = isinstance(self.single_observation_space, spaces.Box)
        self._box_shape = self.single_observation_space.shape if is_box else None
        # Dtypes of a Box's rows that have been checked once; wider integers are checked each time.
        self._dtypes: set[Any] = set()
        self._nested_observations: list[Any] = [None] * size  # nested spaces only
        # The test for the most common space is inlined in `step`.
        self._floats: np.ndarray[Any, Any] | None = None
        self._has_bad_values: Callable[[Batched], bool] | None = None
        if is_box and self.single_observation_space.dtype == np.float32:
            self._floats = np.asarray(self._buffer).reshape(-1)  # a view
            self._zeros = np.zeros_like(self._floats)
        else:
            self._has_bad_values = bad_value_test(self.single_observation_space)
        self._plain_actions = isinstance(
            self.single_action_space,
            spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary,
        )
        self._numbers = isinstance(self.single_action_space, spaces.Discrete)
        self._action_space = batch_space(self.single_action_space, size)
        self._float_rewards = array("d", bytes(8 * size))  # numpy would take text for a number
        self._rewards = np.frombuffer(self._float_rewards)  # [B]
        self._terminateds = np.zeros(size, np.bool_)  # [B]
        self._truncateds = np.zeros(size, np.bool_)  # [B]
        self._vector_steps = 0
        self._episode_starts = [0] * size  # in vector steps

    def reset(self, seeds: list[int]) -> Batched:
        observations = self.reset_envs(np.ones(self.num_envs, np.bool_), seeds)
        if self._check:
            space = self.single_observation_space
            check_rows(space, observations, self.num_envs, self._env_id)
        return observations

    def reset_envs(self, mask: BoolArray, seeds: list[int]) -> Batched:
        for env_index in mask.nonzero()[0].tolist():
            observation = self._first_observation(env_index, seeds)
            if env_index not in self.failed_envs:
                # At the very first reset no episode has ended.
                self._rebuilder.proven |= self._vector_steps > self._episode_starts[env_index]
            self._episode_starts[env_index] = self._vector_steps
            self._write(env_index, observation)
        if not self._in_place:
            self._concatenate()
        return self._buffer

    def repeat(self, actions: Batched, due: BoolArray, seeds: list[int]) -> Batched:
        split = list(self._split(actions))
        for env_index in due.nonzero()[0].tolist():
            self._begin(env_index, split[env_index])
        failed: list[int] = []
        for env_index in due.nonzero()[0].tolist():
            try:
                self._write(env_index, self._step_functions[env_index](split[env_index])[0])
            except RAISED as error:
                self._build_again_or_raise(env_index, error, "step")
                failed.append(env_index)
        self.failed_envs = failed
        if not self._in_place:
            self._concatenate()
        self._vector_steps += 1
        for env_index in (~due).nonzero()[0].tolist():
            self._episode_starts[env_index] = self._vector_steps
        return self._buffer

    def _begin(self, env_index: int, action: Any) -> None:
        """Called before any of a vector's environments is stepped."""

    def _write(self, env_index: int, observation: Any) -> None:
        if self._in_place:
            if not (
                observation.__class__ is np.ndarray
                and observation.shape == self.single_observation_space.shape
                and observation.dtype in self._dtypes
            ):
                self._require_form(observation, env_index, at_reset=True)
            self._buffer[env_index] = observation
        else:
            self._nested_observations[env_index] = observation

    def _first_observation(self, env_index: int, seeds: list[int]) -> Any:
        while True:
            for _ in range(2):  # the second time in a new environment
                try:
                    return self.envs[env_index].reset(seed=int(seeds[env_index]))[0]
                except RAISED as error:
                    self._build_again_or_raise(env_index, error, "reset")
            seeds[env_index] = other_seed(seeds[env_index])

    def _build_again_or_raise(self, env_index: int, error: BaseException, phase: EnvPhase) -> None:
        if isinstance(error, EnvError):
            raise error
        try:
            env = self._rebuilder.build(self._make, self.envs[env_index], env_index, error)
        except TooManyFailures as why:
            raise self._error(error, env_index, phase, str(why)) from None
        self.envs[env_index], self._step_functions[env_index] = env, env.step

    def step(self, actions: Batched) -> StepResult:
        rows = self._in_place
        out = self._buffer if rows else self._nested_observations
        rewards, terminateds, truncateds = self._float_rewards, self._terminateds, self._truncateds
        by_env: dict[int, dict[str, Any]] = {}
        i = 0
        shape, dtypes = self._box_shape, self._dtypes
        split = actions if self._numbers else self._split(actions)
        numbered = enumerate(zip(self._step_functions, split, strict=True))
        failed: list[int] = []
        while True:
            try:
                for i, (step, action) in numbered:
                    seen, rewards[i], terminateds[i], truncateds[i], info = step(action)
                    if shape is not None and not (
                        seen.__class__ is np.ndarray
                        and seen.shape == shape
                        and seen.dtype in dtypes
                    ):
                        self._require_form(seen, i)
                    out[i] = seen
                    if info:
                        by_env[i] = info
                break
            except RAISED as error:
                self._build_again_or_raise(i, error, "step")
                # The iterator is past the failed one: the loop goes on with the next.
                failed.append(i)
                rewards[i], terminateds[i], truncateds[i] = 0.0, False, False
        self.failed_envs = failed
        self._vector_steps += 1
        self._rebuilder.env_steps += self.num_envs
        if not rows:
            self._concatenate()
        if self._floats is not None:
            if self._floats.dot(self._zeros) != 0.0:  # as in `FiniteTest`
                self._raise_bad_value()
        elif self._has_bad_values is not None and self._has_bad_values(self._buffer):
            self._raise_bad_value()
        infos = EnvInfos(by_env, self.num_envs) if by_env else None
        return self._buffer, self._rewards, terminateds, truncateds, infos

    def render(self) -> Any:
        return [env.render() for env in self.envs]

    def get_state(self) -> list[dict[str, Any]] | None:
        return self._ask("get_state", [()] * self.num_envs) if self.offers_state else None

    def set_state(self, state: Any) -> None:
        self._ask("set_state", [(own_state,) for own_state in state])

    def _ask(self, phase: EnvPhase, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        answers = []
        for env_index, given in enumerate(arguments):
            try:
                answers.append(self._answer(self.envs[env_index], phase, given))
            except RAISED as error:
                raise self._error(error, env_index, phase) from None
        return answers

    @staticmethod
    def _answer(env: Any, phase: EnvPhase, given: tuple[Any, ...]) -> Any:
        return STATE_CALLS[phase](env, *given)

    def close(self) -> None:
        close_all(self.envs)

    def _split(self, actions: Batched) -> Any:
        """One action for each sub-environment; read-only if they are rows of the batch."""
        if not self._plain_actions:
            return iterate(self._action_space, actions)
        if isinstance(actions, np.ndarray) and actions.ndim > 1:
            actions = actions.view()
            actions.flags.writeable = False
        return actions

    def _concatenate(self) -> None:
        space, observations = self.single_observation_space, self._nested_observations
        try:
            self._buffer = stack_observations(space, observations, self._buffer)
        except Exception:
            self._raise_bad_value()
            raise

    def _require_equal_spaces(self) -> None:
        for env_index, env in enumerate(self.envs):
            for name in ("observation_space", "action_space"):
                if getattr(env, name) != getattr(self.envs[0], name):
                    found = f"{getattr(self.envs[0], name)} and {getattr(env, name)}"
                    reason = f"sub-environments differ in their {name}: {found}"
                    raise EnvError(self._env_id, "constructor", reason, env_index=env_index)

    def _require_form(self, observation: Any, env_index: int, *, at_reset: bool = False) -> None:
        """Raise an `EnvError` if a Box's observation has another form: see `form_problem`.

        Written into the buffer it would be broadcast or truncated silently.
        """
        space = self.single_observation_space
        if not isinstance(space, spaces.Box):
            return
        problem = form_problem(space, observation)
        if problem is not None:
            step = -1 if at_reset else self._vector_steps - self._episode_starts[env_index]
            raise self._observation_error(problem, env_index, step)
        dtype = np.asarray(observation).dtype
        if not narrows(dtype, space.dtype):
            self._dtypes.add(dtype)

    def _observation_error(self, problem: str, env_index: int, env_step: int) -> EnvError:
        return EnvError(
            self._env_id, "observation", problem, env_index=env_index, env_step=env_step
        )

    def _raise_bad_value(self) -> None:
        for i, row in enumerate(self._buffer if self._in_place else self._nested_observations):
            problem = observation_problem(self.single_observation_space, row)
            if problem is not None:
                step = self._vector_steps - 1 - self._episode_starts[i]
                raise self._observation_error(problem, i, step)

    def _error(
        self, error: BaseException, env_index: int, phase: EnvPhase, note: str = ""
    ) -> EnvError:
        step = self._vector_steps - self._episode_starts[env_index] if phase == "step" else -1
        place = {"env_index": env_index, "env_step": step}
        return EnvError.from_exception(error, self._env_id, phase, **place, note=note)


class ParallelVectorEnv(SerialVectorEnv):
    """Sub-environments in other processes, which step at the same time.

    Args:
        envs: proxies of the sub-environments.
    """

    def reset_envs(self, mask: BoolArray, seeds: list[int]) -> Batched:
        for env_index in mask.nonzero()[0].tolist():
            self.envs[env_index].begin("reset", int(seeds[env_index]))
        return super().reset_envs(mask, seeds)

    def _begin(self, env_index: int, action: Any) -> None:
        self.envs[env_index].begin("step", action)

    def step(self, actions: Batched) -> StepResult:
        for env, action in zip(self.envs, self._split(actions), strict=True):
            env.begin("step", action)
        return super().step(actions)

    def _ask(self, phase: EnvPhase, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        for env, given in zip(self.envs, arguments, strict=True):
            env.begin(phase, *given)
        return super()._ask(phase, arguments)

    @staticmethod
    def _answer(env: Any, phase: EnvPhase, given: tuple[Any, ...]) -> Any:
        return env.finish()
