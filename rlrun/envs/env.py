"""Single environments: from what the experiment file names to a checked `gymnasium.Env`.

Owns how an `EnvSpec` (gymnasium id, registered name or import path, plus keyword arguments) becomes
an environment, its place in the run as its constructor sees it (`EnvContext`), and the check before
the first rollout. Knows nothing of vectorisation, policies or Ray.
"""

from __future__ import annotations

import copy
import ctypes.util
import inspect
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate

from rlrun.config.problems import misfit
from rlrun.config.registry import INSTEAD_OF_STATISTICS, takes_a_config
from rlrun.data.nested import ACTION_MASK
from rlrun.data.seeding import drawn_from
from rlrun.envs.errors import RAISED, RETURNED, EnvError, EnvPhase
from rlrun.envs.wrappers import EnvWrapper, has_info_mask

if TYPE_CHECKING:
    from rlrun.config.schema import EnvSpec

EnvCreator = Callable[..., Any]

_log = logging.getLogger(__name__)
_WRAPPERS: tuple[type[Any], ...] = (gymnasium.Wrapper, gymnasium.vector.VectorWrapper)
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY")

_CONTEXT_PARAMETERS = ("context", "env_context")
_CONFIG_PARAMETERS = ("config", "env_config")


class EnvContext(dict[str, Any]):
    """The environment's keyword arguments, and the place of this copy of it in the run.

    Attributes:
        worker_index: index of the env runner: 0 in the training process, 1..num_workers in actors.
        vector_index: index of the sub-environment within its env runner.
        num_workers: number of Ray actors that sample.
        remote: whether this copy is in a Ray actor.
        recreated_worker: whether its env runner replaces one that died.
        training: False in evaluation and rollouts; a lost life on Atari ends episodes only if True.
    """

    def __init__(
        self,
        kwargs: Mapping[str, Any] | None = None,
        *,
        worker_index: int = 0,
        vector_index: int = 0,
        num_workers: int = 0,
        remote: bool | None = None,
        recreated_worker: bool = False,
        training: bool = True,
    ) -> None:
        super().__init__(kwargs or {})
        self.worker_index = worker_index
        self.vector_index = vector_index
        self.num_workers = num_workers
        self.remote = worker_index > 0 if remote is None else remote
        self.recreated_worker = recreated_worker
        self.training = training

    def for_sub_env(self, env_index: int) -> EnvContext:
        """A copy for sub-environment ``env_index``, which shares no arguments with this one."""
        context = copy.deepcopy(self)
        context.vector_index = env_index
        return context


def make_env(
    spec: EnvSpec,
    context: EnvContext | None = None,
    render_mode: str | None = None,
    *,
    num_envs: int | None = None,
    preprocessor_pref: str | None = "deepmind",
    wrappers: Sequence[EnvWrapper] = (),
) -> Any:
    """Build one copy of the environment that ``spec`` names.

    Args:
        num_envs: a user's function may also return a vector environment of this size, which it
            receives if it has a parameter of that name; None: it must return a single one.

    Raises:
        EnvError: for every failure, with phase "constructor" and the user's traceback.
        ConfigError: a wrapper keeps statistics of its own.
    """
    place = EnvContext() if context is None else copy.copy(context)
    if not place:
        place.update(copy.deepcopy(spec.kwargs))
    env: Any
    try:
        creator = find_creator(spec.use)
        if creator is None:
            env = _make_registered_id(spec.use, place, render_mode, preprocessor_pref)
        else:
            optional: dict[str, Any] = {"num_envs": num_envs or 1}
            if render_mode is not None:
                optional["render_mode"] = render_mode
            any_name = takes_a_config(spec.use, creator)
            env = call_creator(creator, place, optional, any_name=any_name)
        if render_mode == "rgb_array":
            _choose_opengl()
        for wrap in wrappers:
            if not isinstance(env, gymnasium.Env):
                kind = type(env).__name__
                raise TypeError(f"env_runners.env_wrappers: {wrap.name} cannot wrap a {kind}")
            env = wrap(env)
    except EnvError:
        raise
    except RAISED as error:
        raise EnvError.from_exception(
            error, spec.use, "constructor", env_index=place.vector_index
        ) from None
    refuse_own_statistics(env)
    if num_envs is None and not isinstance(env, gymnasium.Env):
        kind = f"{type(env).__module__}.{type(env).__qualname__}"
        reason = f"expected one gymnasium.Env, but {spec.use!r} returned a {kind}"
        raise EnvError(spec.use, "constructor", reason)
    return env


def refuse_own_statistics(env: Any) -> None:
    """Raise a ConfigError for a wrapper whose statistics no other copy of the environment has."""
    while isinstance(env, _WRAPPERS):
        for kind in type(env).__mro__:
            instead = INSTEAD_OF_STATISTICS.get(kind.__name__)
            its_own = kind.__module__.startswith("gymnasium.wrappers.")
            if instead is not None and its_own and env.update_running_mean:
                reason = "evaluations and resumed runs would not have the statistics of its wrapper"
                raise misfit("env", f"{reason} {kind.__name__}: {instead}")
        env = env.env


def register_env(name: str, creator: EnvCreator) -> None:
    """Register an environment under a name for `env:`, in remote env runners as well.

    Args:
        creator: a class or function that makes one environment; see `call_creator` for its
            arguments.
    """
    from rlrun.config import registry

    registry.ENVS[name] = creator


def find_creator(use: str) -> EnvCreator | None:
    """The registered, shipped or imported callable behind ``use``; None for a gymnasium id."""
    from rlrun.config import registry

    registered = registry.ENVS.get(use)
    if registered is not None:
        return registered
    use = registry.SHIPPED_ENVS.get(use, use)
    # gymnasium has a colon form too, "module:Name-v0"; a Python name has no dash.
    if ":" in use and use.rpartition(":")[2].replace(".", "_").isidentifier():
        creator: EnvCreator = registry.import_object(use)
        return creator
    return None


def call_creator(
    creator: EnvCreator, context: EnvContext, optional: Mapping[str, Any], *, any_name: bool = False
) -> Any:
    """Call a user's class or function with the arguments that its signature asks for.

    A parameter ``context`` or ``env_context`` receives the `EnvContext`, besides the keyword
    arguments; a single parameter ``config``, as in RLlib (of any name, with ``any_name``), receives
    the `EnvContext` alone. Entries of ``optional`` are passed only to parameters of their names.
    """
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):  # callables of C extensions have no signature
        return creator(**context)
    named = [p for p in parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    extra = {p.name: optional[p.name] for p in named if p.name in optional}
    extra = {name: value for name, value in extra.items() if name not in context}
    for name in _CONTEXT_PARAMETERS:
        if name in parameters and name not in context:
            return creator(**{name: context}, **context, **extra)
    own = [p for p in named if p.name not in extra]
    if len(own) == 1 and own[0].name not in context:
        only = own[0]
        if only.name in _CONFIG_PARAMETERS or (any_name and only.default is only.empty):
            return creator(context, **extra)
    return creator(**context, **extra)


def _make_registered_id(
    use: str, context: EnvContext, render_mode: str | None, preprocessor_pref: str | None
) -> gymnasium.Env[Any, Any]:
    """Make a registered environment; Atari games get DeepMind's wrappers if these are preferred."""
    from rlrun.envs import atari

    kwargs = dict(context)
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    is_atari = atari.is_atari_id(use)
    deepmind = is_atari and preprocessor_pref == "deepmind"
    if deepmind:
        kwargs.setdefault("frameskip", 1)  # the preprocessing skips, and takes the maximum
    if ":" in use:
        env = gymnasium.make(use, disable_env_checker=True, **kwargs)
    else:
        env_spec = copy.deepcopy(gymnasium.spec(use))
        # Two layers a step for nothing: the runner keeps the order, and `check_env` checks.
        env_spec.order_enforce = False
        env = gymnasium.make(env_spec, disable_env_checker=True, **kwargs)
    return atari.deepmind(env, training=context.training) if deepmind else env


def _choose_opengl() -> None:
    """Choose MuJoCo's backend for rendering without a display: EGL, else OSMesa.

    By default it takes GLFW, which needs a display. It reads the choice at its first frame.
    """
    chosen = sys.platform != "linux" or any(os.environ.get(name) for name in _DISPLAYS)
    if chosen or "MUJOCO_GL" in os.environ or "mujoco" not in sys.modules:
        return
    for backend, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library) is not None:
            os.environ["MUJOCO_GL"] = backend
            _log.warning("there is no display: MuJoCo renders with MUJOCO_GL=%s", backend)
            return
    raise OSError(
        "MuJoCo renders without a display only with EGL or OSMesa, which are not installed: "
        "apt install libegl1 (or libosmesa6)"
    )


def time_limits(env: Any) -> Iterator[Any]:
    """Each `TimeLimit` around ``env``; no other state of gymnasium's wrappers matters."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            yield env
        env = env.env


class CheckedEnv(NamedTuple):
    """Properties of an environment that one reset and one step reveal."""

    draws_elsewhere: bool
    """Whether it drew from a global generator or from its own spaces."""
    has_info_mask: bool
    """Whether its infos have an ``action_mask``."""


def check_env(env: gymnasium.Env[Any, Any], env_id: str) -> CheckedEnv:
    """Reset and step ``env`` once, and check what it returns against its spaces.

    Raises:
        EnvError: the environment raised, or returned something wrong.
    """
    before = drawn_from(env)
    for name in ("observation_space", "action_space"):
        if not isinstance(getattr(env, name, None), spaces.Space):
            raise EnvError(env_id, "constructor", f"{name} is not a gymnasium space")
    result = _guarded(env_id, "reset", lambda: env.reset(seed=0))
    if not (isinstance(result, tuple) and len(result) == 2):
        raise EnvError(env_id, "reset", f"reset() must return {RETURNED['reset']}")
    observation, info = result
    if not isinstance(info, dict):
        raise EnvError(env_id, "reset", f"info must be a dict, not {type(info)}")
    check_observation(env.observation_space, observation, env_id, step=-1)
    action = random_action(
        env.action_space, info if has_info_mask(env, info) else observation, seed=0
    )
    result = _guarded(env_id, "step", lambda: env.step(action))
    problem = _step_problem(result)
    if problem is not None:
        raise EnvError(env_id, "step", problem, env_step=0)
    check_observation(env.observation_space, result[0], env_id, step=0)
    return CheckedEnv(drawn_from(env) != before, has_info_mask(env, {**result[4], **info}))


def random_action(space: spaces.Space[Any], observation: Any, *, seed: int) -> Any:
    """An action of the space, one that the observation's action mask allows if it has one."""
    space = copy.deepcopy(space)  # the environment may draw from its own
    space.seed(seed)
    if isinstance(observation, Mapping) and ACTION_MASK in observation:
        mask = np.asarray(observation[ACTION_MASK]).astype(np.int8)
        if isinstance(space, spaces.Discrete) and mask.shape == (space.n,):
            return space.sample(mask)
        if isinstance(space, spaces.MultiDiscrete) and mask.shape == (space.nvec.sum(),):
            flat = spaces.MultiDiscrete(space.nvec.ravel(), start=space.start.ravel(), seed=seed)
            masks = np.split(mask, np.cumsum(flat.nvec)[:-1])
            return flat.sample(tuple(masks)).reshape(space.shape).astype(space.dtype)
    return space.sample()


def _step_problem(result: Any) -> str | None:
    """What is wrong with the result of ``step()``, except its observation; None for nothing."""
    if not (isinstance(result, tuple) and len(result) == 5):
        returned = f"{len(result)} values" if isinstance(result, tuple) else str(type(result))
        return f"step() must return {RETURNED['step']}, but returned {returned}"
    problem = reward_problem(result[1])
    for name, flag in zip(("terminated", "truncated"), result[2:4], strict=True):
        if problem is None and reward_problem(flag) is not None:  # all text but "" would be true
            problem = f"{name} is neither true nor false: {flag!r}"
    if problem is None and not isinstance(result[4], dict):
        problem = f"info must be a dict, not {type(result[4])}"
    return problem


def reward_problem(reward: Any) -> str | None:
    """What is wrong with a reward, or None; text is not a number, though `float` would read it."""
    try:
        number = math.ldexp(reward, 0)
    except (TypeError, ValueError):
        return f"reward is not a number: {reward!r}"
    except OverflowError:
        return "reward is too large for a floating-point number"
    return None if math.isfinite(number) else f"reward is {number}"


def _guarded(env_id: str, phase: EnvPhase, call: Callable[[], Any]) -> Any:
    step = 0 if phase == "step" else -1
    try:
        return call()
    except RAISED as error:
        raise EnvError.from_exception(error, env_id, phase, env_step=step) from None


def check_observation(
    space: spaces.Space[Any], observation: Any, env_id: str, *, step: int, env_index: int = 0
) -> None:
    """Raise an `EnvError` unless ``observation`` is in ``space`` and finite."""
    problem = observation_problem(space, observation)
    if problem is not None:
        raise EnvError(env_id, "observation", problem, env_index=env_index, env_step=step)


def info_numbers(info: Mapping[str, Any], keys: Iterable[str]) -> dict[str, float]:
    """The numbers under these keys (`report.info_keys` and is_success) in an info.

    Raises:
        ValueError: one of them is not a number.
    """
    numbers = {}
    for key in keys:
        if info.get(key) is not None:
            try:
                numbers[key] = float(info[key])
            except (TypeError, ValueError):
                reason = f"info[{key!r}] is not a number: {info[key]!r}"
                raise ValueError(f"{reason}; report.info_keys and is_success must be") from None
    return numbers


def observation_problem(
    space: spaces.Space[Any], observation: Any, where: str = "observation"
) -> str | None:
    """What is wrong with ``observation``, or None; any precision of floats is allowed."""
    if isinstance(space, spaces.Box):
        return _box_problem(space, observation, where)
    parts: dict[Any, spaces.Space[Any]]
    if isinstance(space, spaces.Dict):
        parts = dict(space.spaces)
        fits = isinstance(observation, Mapping) and set(observation) == set(parts)
        expected = f"a dict with the keys {sorted(map(str, parts))}"
    elif isinstance(space, spaces.Tuple):
        parts = dict(enumerate(space.spaces))
        fits = isinstance(observation, tuple | list) and len(observation) == len(parts)
        expected = f"a tuple of {len(parts)} entries"
    else:
        try:
            inside = space.contains(observation)
        except OverflowError:  # gymnasium 1.3, of an integer that the dtype cannot hold
            inside = False
        return None if inside else f"{where} {observation!r} is not in {space}"
    if not fits:
        return f"{where} must be {expected}"
    problems = (
        observation_problem(part, observation[key], f"{where}[{key!r}]")
        for key, part in parts.items()
    )
    return next((problem for problem in problems if problem is not None), None)


def _box_problem(space: spaces.Box, observation: Any, where: str) -> str | None:
    """What is wrong with one array, or None; NaN is looked for first, since no bound holds it."""
    problem = form_problem(space, observation, where)
    if problem is not None:
        return problem
    array = np.asarray(observation)
    if np.issubdtype(array.dtype, np.floating):
        with np.errstate(over="ignore"):
            finite = np.isfinite(array.astype(np.float32))
        if not finite.all():
            index = _first_index(~finite)
            value = array[index]
            kind = "NaN" if np.isnan(value) else "an infinity"
            if np.isfinite(value):
                kind = f"{value}, which is infinite in float32,"
            return f"{where} holds {kind} at index {index}"
    array = array.astype(space.dtype)
    outside = (array < space.low) | (array > space.high)
    if outside.any():
        index = _first_index(outside)
        low, high = space.low[index], space.high[index]
        return f"{where} at index {index} is {array[index]}, outside of [{low}, {high}]"
    return None


def form_problem(space: spaces.Box, observation: Any, where: str = "observation") -> str | None:
    """What is wrong with an array's shape or dtype, or with integers that do not fit, or None."""
    try:
        array = np.asarray(observation)
        fits = np.can_cast(array.dtype, space.dtype, casting="same_kind")
    except (TypeError, ValueError):
        return f"{where} is not an array: {type(observation).__name__}"
    if array.shape != space.shape:
        return f"{where} has shape {array.shape}, but the space has {space.shape}"
    if not fits:
        return f"{where} has dtype {array.dtype}, but the space has {space.dtype}"
    if narrows(array.dtype, space.dtype):
        wrapped = array != array.astype(space.dtype)
        if wrapped.any():
            index = _first_index(wrapped)
            return f"{where} at index {index} is {array[index]}, which {space.dtype} cannot hold"
    return None


def narrows(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether an integer dtype cannot hold all numbers of the given one."""
    return dtype.kind in "iu" and not np.can_cast(given, dtype)


def stack_observations(space: spaces.Space[Any], observations: Sequence[Any], out: Any) -> Any:
    """Write observations into a batch, like gymnasium's `concatenate`, and return it.

    Raises:
        ValueError: for integers that the dtype of their space cannot hold, which would wrap around,
            and for tuples of another length than their space.
    """
    if isinstance(space, spaces.Dict):
        return {
            key: stack_observations(part, [each[key] for each in observations], out[key])
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        entries = zip(*observations, strict=True)
        return tuple(
            stack_observations(part, rows, into)
            for part, rows, into in zip(space.spaces, entries, out, strict=True)
        )
    if space.dtype is None or space.dtype.kind not in "iu":
        return concatenate(space, observations, out)
    try:
        return np.stack(observations, out=out, casting="safe")
    except TypeError:
        out[...] = in_dtype(np.stack(observations), space.dtype)
        return out


def in_dtype(rows: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Rows of observations in the dtype of their space.

    Raises:
        TypeError: for numbers of another kind than the space's.
        ValueError: for integers that the dtype cannot hold, which would wrap around.
    """
    whole = rows.dtype.kind in "iu" and dtype.kind in "iu"  # numpy makes int64 of an int
    cast = rows.astype(dtype, casting="unsafe" if whole else "same_kind", copy=False)
    if whole and (cast != rows).any():
        raise ValueError(f"observations do not fit into {dtype}")
    return cast


def _first_index(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(int(axis[0]) for axis in np.nonzero(mask))
