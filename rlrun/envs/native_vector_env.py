"""Gymnasium's vector environments of all autoreset modes as an `EpisodeVectorEnv`.

Owns the three autoreset modes of gymnasium 1.x, which no other file knows of. The mode is read from
``metadata["autoreset_mode"]``, never assumed:

    DISABLED   the caller resets sub-environments by ``reset_mask``: exactly our interface. The
               first such reset is checked, unless the class is known
    SAME_STEP  the observation at the end of an episode is already the next episode's; the final one
               is in ``infos["final_obs"]``, and the first one is kept for `reset_envs`
    NEXT_STEP  the step after the end is the reset and not a transition. If the class is known to
               honour ``reset_mask`` (gymnasium's Sync and Async), sub-environments are reset by it,
               with a seed for each episode; otherwise (CartPole's own ignores the mask and resets
               all sub-environments) `valid` marks the rows that are transitions.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from rlrun.config.problems import misfit
from rlrun.envs.env import EnvContext
from rlrun.envs.env_state import give_state, offers_state, state_problem, take_state
from rlrun.envs.episode_vector_env import (
    Batched,
    BoolArray,
    EnvInfos,
    EpisodeVectorEnv,
    StepResult,
    bad_value_test,
    check_rows,
)
from rlrun.envs.errors import RAISED, EnvError, EnvPhase

if TYPE_CHECKING:
    from rlrun.config.schema import EnvSpec

_log = logging.getLogger(__name__)

_PLAIN = np.ndarray | bool | int | float | np.generic
_WHOLE_VECTOR = -1  # index in errors that cannot be attributed to a sub-environment


def from_entry_point(
    spec: EnvSpec, num_envs: int, context: EnvContext, render_mode: str | None = None
) -> NativeVectorEnv:
    """The vector environment of a gymnasium id's own vector entry point, with its time limit."""
    from rlrun.envs import atari

    kwargs = dict(context)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    try:
        atari.is_atari_id(spec.use)  # registers them
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing metadata, which `adapt` refuses
            env = gymnasium.make_vec(
                spec.use, num_envs, vectorization_mode="vector_entry_point", **kwargs
            )
    except RAISED as error:
        raise EnvError.from_exception(error, spec.use, "constructor") from None
    return adapt(env, spec.use, num_envs)


def adapt(env: Any, env_id: str, num_envs: int) -> NativeVectorEnv:
    """Adapt any gymnasium vector environment of ``num_envs`` sub-environments."""

    def refuse(reason: str) -> EnvError:
        return EnvError(env_id, "constructor", reason)

    if hasattr(env, "possible_agents"):
        message = f"{env_id} has several agents: name their policies, as in {{policies: [shared]}}"
        raise misfit("multi_agent", message)
    if not isinstance(env, VectorEnv):
        kind = f"{type(env).__module__}.{type(env).__qualname__}"
        raise refuse(f"expected a gymnasium.Env or gymnasium.vector.VectorEnv, got a {kind}")
    if env.num_envs != num_envs:
        raise refuse(
            f"it has {env.num_envs} sub-environments, but num_envs_per_env_runner is {num_envs}; "
            f"give its function a parameter num_envs, or set num_envs_per_env_runner={env.num_envs}"
        )
    mode = (env.metadata or {}).get("autoreset_mode")
    try:
        mode = AutoresetMode(getattr(mode, "value", mode))
    except ValueError:
        raise refuse(
            f"its metadata['autoreset_mode'] is {mode!r}; it must be one of "
            f"{[f'AutoresetMode.{known.name}' for known in AutoresetMode]}, since rollouts that "
            "assume the wrong mode are wrong at every episode end"
        ) from None
    return NativeVectorEnv(env, env_id, mode)


class NativeVectorEnv(EpisodeVectorEnv):
    """A gymnasium vector environment behind our interface; see the module's docstring."""

    def __init__(self, env: VectorEnv[Any, Any, Any], env_id: str, mode: AutoresetMode) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.valid: BoolArray | None = None
        self.failed_envs: Sequence[int] = ()
        self._env_id = env_id
        self._mode = mode
        known = _honours_reset_mask(env)
        self._masks = mode is AutoresetMode.DISABLED or known
        self._seed_lists = known or self._accepts_seed_lists()
        self.resets_single_envs = self._masks
        self.episode_seeds = self._masks and self._seed_lists
        self.every_step_counts = self._masks or mode is AutoresetMode.SAME_STEP
        self._finished = np.zeros(self.num_envs, np.bool_)  # [B] NEXT_STEP without masks
        self._reset_observations: Batched = None  # SAME_STEP: of the last step
        self._to_check = self._masks and not known  # whether a mask spares the others
        self._latest: Batched = None  # until then, of the last step
        self._has_bad_values = bad_value_test(self.single_observation_space)
        self._vector_steps = 0
        self._per_env = (self.num_envs,)
        self._shapes: Any = None  # of a reset's observations, until a step has the same
        self._stateful: Any = env if offers_state(env) else _Arrays(env)
        self.offers_state = self._require_state()

    def reset(self, seeds: Sequence[int]) -> Batched:
        self._finished[:] = False
        self.valid = None
        self._vector_steps = 0
        observations = self._reset(list(map(int, seeds)), None)
        self._check_rows(observations)
        self._shapes = _shapes(observations)
        return observations

    def step(self, actions: Batched) -> StepResult:
        try:
            observations, rewards, terminateds, truncateds, infos = self.env.step(actions)
            rewards = np.asarray(rewards).astype(np.float64, casting="same_kind", copy=False)
        except RAISED as error:
            raise self._error(error, "step") from None
        terminateds, truncateds = np.asarray(terminateds, bool), np.asarray(truncateds, bool)
        shapes_agree = rewards.shape == terminateds.shape == truncateds.shape == self._per_env
        if self._shapes is not None or not shapes_agree:
            arrays = {"rewards": rewards, "terminateds": terminateds, "truncateds": truncateds}
            self._require_shapes(observations, arrays)
        self._vector_steps += 1
        if self._to_check:
            self._latest = observations
        if self._has_bad_values(observations):
            self._check_rows(observations)
        done = terminateds | truncateds
        if self._mode is AutoresetMode.SAME_STEP:
            self._reset_observations = observations
            if done.any():
                observations = self._with_final(observations, infos, done)
                if self._has_bad_values(observations):
                    self._check_rows(observations)
        elif not self._masks:
            self.valid = ~self._finished if self._finished.any() else None
            self._finished = done
        infos_by_env = _infos_by_env(infos, done, self.num_envs) if infos else None
        return observations, rewards, terminateds, truncateds, infos_by_env

    def reset_envs(self, mask: BoolArray, seeds: Sequence[int]) -> Batched | None:
        """Start episodes where ``mask`` is True; None in NEXT_STEP mode without masks."""
        if self._masks:
            before = deepcopy(self._latest)
            observations = self._reset(list(map(int, seeds)) if self._seed_lists else None, mask)
            if before is not None and not mask.all():
                self._check_mask(before, observations, mask)
            return observations
        if self._mode is AutoresetMode.SAME_STEP:
            return self._reset_observations
        return None

    def render(self) -> Any:
        return self.env.render()

    def get_state(self) -> dict[str, Any] | None:
        """The state that the environment offers, or all of its attributes and its generator."""
        if not self.offers_state:
            return None
        return {"env": take_state(self._stateful), "finished": self._finished.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `get_state`; the environment must be of the same class and size."""
        give_state(self._stateful, state["env"])
        self._finished = np.array(state["finished"], bool)

    def _require_state(self) -> bool:
        """Whether there is a state that a resumed run can continue from.

        Sub-environments with a seed for each episode need none: they are replayed.
        """
        if self.episode_seeds or not offers_state(self._stateful):
            return False

        def sampled(_: Batched, seed: int) -> Batched:
            self.env.action_space.seed(seed)
            return self.env.action_space.sample()

        problem = state_problem(self._stateful, sampled, lambda stepped: False)
        if problem is not None:
            _log.warning("%s offers a state, which is not used: %s", self._env_id, problem)
        return problem is None

    def close(self) -> None:
        self.env.close()

    def _reset(self, seeds: list[int] | None, mask: BoolArray | None) -> Batched:
        seed: Any = seeds if seeds is None or self._seed_lists else seeds[0]
        options = None if mask is None else {"reset_mask": np.array(mask, bool)}
        try:
            observations, _ = self.env.reset(seed=seed, options=options)
        except RAISED as error:
            raise self._error(error, "reset") from None
        return observations

    def _check_mask(self, before: Batched, after: Batched, mask: BoolArray) -> None:
        """Raise an EnvError if a reset has changed a row that the mask leaves out."""
        self._to_check, self._latest = False, None
        rows = (iterate(self.env.observation_space, each) for each in (before, after))
        for env_index, pair in enumerate(zip(*rows, strict=True)):
            flat: Any = [spaces.flatten(self.single_observation_space, row) for row in pair]
            if not mask[env_index] and not np.array_equal(*flat):
                reason = (
                    "its observation has changed in a reset(options={'reset_mask': ...}) that does "
                    "not name it; with AutoresetMode.DISABLED, a reset must heed the mask"
                )
                raise EnvError(self._env_id, "reset", reason, env_index=env_index)

    def _accepts_seed_lists(self) -> bool:
        """Whether each sub-environment can be given its own seed; elsewhere one seed serves all."""
        seeds: Any = list(range(self.num_envs))
        try:
            self.env.reset(seed=seeds)
        except Exception:  # any: each environment says in its own way that it wants an int
            return False
        return True

    def _with_final(self, observations: Batched, infos: dict[str, Any], done: BoolArray) -> Batched:
        """``observations`` with the true last ones in the rows of finished environments."""
        if "final_obs" not in infos:
            reason = "it resets in the same step, but infos hold no final_obs at an episode's end"
            raise EnvError(self._env_id, "step", reason, env_index=int(np.flatnonzero(done)[0]))
        space, final = self.single_observation_space, infos["final_obs"]
        if not (isinstance(final, np.ndarray) and final.dtype == object):
            final = list(iterate(self.env.observation_space, final))
        rows = [
            final[env_index] if done[env_index] else row
            for env_index, row in enumerate(iterate(self.env.observation_space, observations))
        ]
        out: Any = create_empty_array(space, n=self.num_envs)
        return concatenate(space, rows, out)

    def _check_rows(self, observations: Batched) -> None:
        """Raise an EnvError if a row is not in the observation space."""
        space, step = self.single_observation_space, self._vector_steps - 1
        check_rows(space, observations, self.num_envs, self._env_id, step=step)

    def _require_shapes(self, observations: Batched, arrays: Mapping[str, Any]) -> None:
        """Raise an EnvError for arrays that numpy would broadcast without a word."""
        found: dict[str, Any] = {name: array.shape for name, array in arrays.items()}
        expected: dict[str, Any] = dict.fromkeys(arrays, self._per_env)
        if self._shapes is not None:
            found["observations"], expected["observations"] = _shapes(observations), self._shapes
            self._shapes = None
        for name, shape in found.items():
            if shape != expected[name]:
                reason = f"step() returned {name} of shape {shape}, not {expected[name]}"
                place: Any = {"env_index": _WHOLE_VECTOR, "env_step": self._vector_steps}
                raise EnvError(self._env_id, "step", reason, **place)

    def _error(self, error: BaseException, phase: EnvPhase) -> EnvError:
        if isinstance(error, EnvError):
            return error
        step = self._vector_steps if phase == "step" else -1
        place = {"env_index": _WHOLE_VECTOR, "env_step": step}
        return EnvError.from_exception(error, self._env_id, phase, **place)


def _shapes(observations: Batched) -> Any:
    """The shape of each leaf."""
    if isinstance(observations, dict):
        return {key: _shapes(part) for key, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(map(_shapes, observations))
    return np.shape(observations)


def _honours_reset_mask(env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether ``reset_mask`` is known to reset its sub-environments and no others, once.

    Without shared memory gymnasium's Async resets a sub-environment a second time at the next step.
    """
    base = env.unwrapped
    if isinstance(base, AsyncVectorEnv):
        return bool(base.shared_memory) or base.autoreset_mode is not AutoresetMode.NEXT_STEP
    return isinstance(base, SyncVectorEnv)


def _infos_by_env(infos: dict[str, Any], done: BoolArray, num_envs: int) -> EnvInfos | None:
    """Gymnasium's dict of arrays (with masks ``_key``) as a dict for each environment with infos.

    In SAME_STEP mode a finished sub-environment's info is that of its last step.
    """
    final = infos.get("final_info")
    by_env: dict[int, dict[str, Any]] = {}
    for env_index in range(num_envs):
        source = final if final is not None and done[env_index] else infos
        info = _info_of(source, env_index)
        if info:
            by_env[env_index] = info
    return EnvInfos(by_env, num_envs) if by_env else None


def _info_of(infos: dict[str, Any], env_index: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, values in infos.items():
        if key.startswith("_") or key in ("final_obs", "final_info"):
            continue
        mask = infos.get(f"_{key}")
        if mask is None or mask[env_index]:
            found[key] = (
                _info_of(values, env_index) if isinstance(values, dict) else values[env_index]
            )
    return found


class _Arrays:
    """An environment made of arrays and numbers alone, which are its state."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.unwrapped, self.reset, self.step = env, env.reset, env.step
        constant = (
            spaces.Space,
            str,
            dict,
            np.random.Generator,
            gymnasium.envs.registration.EnvSpec,
        )
        others = [x for x in vars(env).values() if x is not None and not isinstance(x, _PLAIN)]
        self.offers_state = all(isinstance(value, constant) for value in others)

    def get_state(self) -> dict[str, Any]:
        """The attributes that change."""
        return {k: value for k, value in vars(self.unwrapped).items() if isinstance(value, _PLAIN)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Set them."""
        vars(self.unwrapped).update(state)
