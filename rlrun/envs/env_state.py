"""The state of an environment that offers it: taken, given back, and tested first.

An environment offers its state by ``get_state()`` and ``set_state(state)``; what it returns is
made of numbers, text, bytes, numpy arrays, and dicts, lists and tuples of them. Beside it are kept
the generator that gymnasium gives to each environment and the counts of time limits. Environments
without one are brought back by repeating their episode's actions, which is the sampler's part.

Must not know how many sub-environments there are, nor in which process they are.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers

from rlrun.checkpoint.state_codec import decode, encode
from rlrun.data.seeding import OwnGenerators
from rlrun.envs.env import time_limits
from rlrun.envs.errors import RAISED
from rlrun.envs.wrappers import InfoActionMask

_STEPS_BEFORE, _STEPS_AFTER = 3, 5  # of the test, around taking the state
_KNOWN = wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker
"""Wrappers whose only state that matters to an episode is the step count of a time limit."""
_PASSED_THROUGH = (
    *_KNOWN,
    InfoActionMask,
    # The test finds those that remember something.
    gymnasium.ObservationWrapper,
    gymnasium.ActionWrapper,
    gymnasium.RewardWrapper,
)


def offers_state(env: Any) -> bool:
    """Whether an environment hands out its state."""
    holder = _holder(env)
    return holder is not None and bool(getattr(holder, "offers_state", True))


def take_state(env: Any) -> dict[str, Any]:
    """The state of an environment that offers it, shared with nothing."""
    holder = _holder(env)
    generator = _generator(holder)
    return {
        "own": copy.deepcopy(holder.get_state()),
        "elapsed_steps": [limit._elapsed_steps for limit in time_limits(env)],
        "np_random": None if generator is None else generator.bit_generator.state,
    }


def give_state(env: Any, state: Mapping[str, Any]) -> None:
    """Restore a state from `take_state` in an environment that has been reset."""
    holder = _holder(env)
    holder.set_state(copy.deepcopy(state["own"]))
    generator = _generator(holder)
    if generator is not None and state["np_random"] is not None:
        generator.bit_generator.state = state["np_random"]
    for limit, elapsed_steps in zip(time_limits(env), state["elapsed_steps"], strict=True):
        limit._elapsed_steps = elapsed_steps


STATE_CALLS: dict[str, Callable[..., Any]] = {"get_state": take_state, "set_state": give_state}


def state_problem(
    env: Any, choose_action: Callable[[Any, int], Any], is_over: Callable[[Any], bool]
) -> str | None:
    """The fault of the state that an environment offers; None if it can be relied on.

    It must lead to the same steps again, after another episode, and wrappers must not change.

    Args:
        choose_action: chooses an action, given an observation (or several agents') and a seed.
        is_over: says whether a result of ``step`` ends the episode.
    """
    if not offers_state(env):
        return f"{type(env).__name__} around it may remember something"
    try:
        return _difference(env, choose_action, is_over)
    except RAISED as error:
        return f"{type(error).__name__}: {error}"


def _difference(
    env: Any, choose_action: Callable[[Any, int], Any], is_over: Callable[[Any], bool]
) -> str | None:
    def walk(observation: Any, num_steps: int) -> Iterator[tuple[Any, Any]]:
        """Actions and what they lead to, until the episode is over."""
        for seed in range(num_steps):
            action = choose_action(observation, seed)
            stepped = env.step(action)[:4]
            yield action, copy.deepcopy(stepped)
            observation = stepped[0]
            if is_over(stepped):
                break

    observation, _ = env.reset(seed=0)
    memories = copy.deepcopy([memory for _, memory in _wrappers(env)])
    for _, stepped in walk(observation, _STEPS_BEFORE):
        observation = stepped[0]
        if is_over(stepped):
            observation, _ = env.reset(seed=0)
    observation = copy.deepcopy(observation)
    document, arrays = encode(take_state(env))
    expected = list(walk(observation, _STEPS_AFTER))
    for (wrapper, memory), before in zip(_wrappers(env), memories, strict=True):
        if not _equal(memory, before):
            return f"the wrapper {type(wrapper).__name__} around it remembers something"
    env.reset(seed=1)
    give_state(env, decode(document, arrays))
    for step, (action, first) in enumerate(expected):
        if not _equal(env.step(action)[:4], first):
            return f"set_state(get_state()) does not reproduce step {step + 1} behind it"
    return None


def _holder(env: Any) -> Any:
    """The object with the two methods, inside of wrappers that remember nothing, or None.

    An environment that draws from global generators, or from its spaces, is none: these have states
    of their own.
    """
    while isinstance(env, _PASSED_THROUGH) and not hasattr(type(env), "get_state"):
        env = env.env
    offered = hasattr(env, "get_state") and hasattr(env, "set_state")
    return env if offered and not isinstance(env, OwnGenerators) else None


def _generator(holder: Any) -> np.random.Generator | None:
    """Gymnasium's generator of an environment, if it has drawn from it."""
    generator = getattr(getattr(holder, "unwrapped", holder), "_np_random", None)
    return generator if isinstance(generator, np.random.Generator) else None


def _wrappers(env: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Wrappers that states pass through, with their attributes."""
    holder = _holder(env)
    while env is not holder:
        if not isinstance(env, _KNOWN):
            yield env, {name: value for name, value in vars(env).items() if name != "env"}
        env = env.env


def _equal(left: Any, right: Any) -> bool:
    """Whether two results of ``step`` are the same, entry by entry."""
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_equal(left[k], right[k]) for k in left)
    if isinstance(left, tuple | list | deque):
        return len(left) == len(right) and all(map(_equal, left, right))
    return np.array_equal(left, right)
