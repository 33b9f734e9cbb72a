"""The state of an environment that offers it: taking it, restoring it, and testing it first.

An environment offers its state by ``get_state()`` and ``set_state(state)``; the state consists of
numbers, text, bytes, numpy arrays, and dicts, lists and tuples of them. It is saved together with
gymnasium's generator of the environment and the step counts of time limits. Environments without a
state are brought back by repeating the actions of their episode, which the sampler does.

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
    # `state_problem` finds those with a state of their own.
    gymnasium.ObservationWrapper,
    gymnasium.ActionWrapper,
    gymnasium.RewardWrapper,
)


def offers_state(env: Any) -> bool:
    """Whether an environment offers its state."""
    holder = _holder(env)
    return holder is not None and bool(getattr(holder, "offers_state", True))


def take_state(env: Any) -> dict[str, Any]:
    """A deep copy of the state of an environment that offers it."""
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
    """Why the state that an environment offers cannot be relied on; None if it can.

    Restored after another episode, it must lead to the same steps, and the attributes of wrappers
    must not change.

    Args:
        choose_action: chooses an action, given an observation (or several agents') and a seed.
        is_over: says whether a result of ``step`` ends the episode.
    """
    if not offers_state(env):
        return f"the wrapper {type(env).__name__} around it may have a state of its own"
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
            return f"the wrapper {type(wrapper).__name__} around it has a state of its own"
    env.reset(seed=1)
    give_state(env, decode(document, arrays))
    for step, (action, first) in enumerate(expected):
        if not _equal(env.step(action)[:4], first):
            return f"set_state(get_state()) does not reproduce step {step + 1} after it"
    return None


def _holder(env: Any) -> Any:
    """The object with the two methods, inside wrappers without a state of their own; or None.

    An environment that draws from global generators or its spaces is not one: these have states,
    too.
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
