"""Settings of algorithms that replay, and what is wrong with them, in a file or on this machine.

Owns the checks of the sections `exploration` and `replay`, and of `model` and `training` as far as
replay restricts them. Must not know how anything is sampled or learned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from rlrun.algorithms.algorithm import Algorithm
from rlrun.config.memory_checks import TRANSITION_BYTES
from rlrun.config.policies import PolicySettings, addressed_settings
from rlrun.config.registry import ImportPathError, import_object
from rlrun.config.schema import (
    MEMORY_SWITCHES,
    Count,
    ExperimentConfig,
    ExplorationConfig,
    TrainingConfig,
)
from rlrun.config.section import Positive, UseSpec
from rlrun.policies.policy_mapping import Spaces

_EXPLORATION_KEYS: dict[str, tuple[str, ...]] = {
    "EpsilonGreedy": ("epsilon", "runner_exponent"),
    "SoftQ": ("temperature",),
    "StochasticSampling": (),
    "Random": (),
    "GaussianNoise": ("scale", "stddev"),
    "OrnsteinUhlenbeckNoise": ("scale", "theta", "sigma"),
    "ParameterNoise": ("initial_stddev",),
}


def exploration_keys(kind: str | UseSpec) -> tuple[str, ...]:
    """The keys that a type of exploration uses besides the common ones.

    Raises:
        ImportPathError: it is a strategy that does not exist.
    """
    if isinstance(kind, str):
        return _EXPLORATION_KEYS[kind]
    schedules: tuple[str, ...] = import_object(kind.use).schedules
    return (*schedules, "runner_exponent") if "epsilon" in schedules else schedules


EQUAL_NOISE = {"EpsilonGreedy": "EpsilonGreedy", "StochasticSampling": "GaussianNoise"}
"""An algorithm's default type -> the type by whose keys ParameterNoise is scaled."""

COMMON_IN_LOCKSTEP = (
    *("minibatch_size", "training_intensity"),
    "num_steps_sampled_before_learning_starts",
)
"""Settings that no policy has of its own in lockstep, where all learn from the same env steps."""

_MOST_FRAMES = 8


class ReplayTraining(TrainingConfig):
    """Settings that algorithms with replay share; `replay` is a section of its own."""

    train_batch_size: Count = 1024
    """Env steps collected for one iteration, exactly, in many short rounds with updates between."""
    minibatch_size: Count = 32
    """Transitions replayed for one gradient step."""
    training_intensity: Positive = 8.0
    """Transitions replayed for each env step sampled; 8 is a minibatch of 32 for every 4 steps."""
    num_steps_sampled_before_learning_starts: Count = 1000
    """Env steps put into an empty replay buffer before it is learned from."""
    n_step: Count = 1
    """Rewards summed before the target network's value is added; fewer where the episode ends, and
    from the newest transitions."""


def replay_problems(
    algorithm: type[Algorithm[ReplayTraining]],
    config: ExperimentConfig,
    exploration_types: Sequence[str],
    memories: Sequence[str],
) -> Iterator[tuple[str, str]]:
    """What is wrong with replay settings, as ``(key, message)``.

    Args:
        exploration_types, memories: see `ReplayAlgorithm`.
    """
    any_memory = False
    for prefix, settings in addressed_settings(config):
        yield from _memory_problems(config.algorithm, prefix, settings, memories)
        yield from _capacity_problems(
            config.replay.capacity, prefix, algorithm.training_in(settings)
        )
        yield from _exploration_problems(
            config.algorithm, prefix, settings.exploration, exploration_types
        )
        any_memory |= any(getattr(settings.model, name) for name in memories)
    if config.replay.burn_in and not any_memory:
        message = "there is no memory to bring up to date; remove this key, or set model.use_lstm"
        yield "replay.burn_in", message if memories else message.partition(", or")[0]
    if config.replay.mode == "lockstep":
        yield from _lockstep_problems(config, any_memory)


def _exploration_problems(
    algorithm: str, prefix: str, settings: ExplorationConfig, types: Sequence[str]
) -> Iterator[tuple[str, str]]:
    kind = settings.type or types[0]
    if isinstance(kind, str) and kind not in types:
        yield f"{prefix}exploration.type", f"{algorithm} explores by {' or '.join(types)}"
        return
    try:
        used = exploration_keys(kind)
    except (ImportPathError, AttributeError):  # which has been found
        return
    if kind == "ParameterNoise":
        used += exploration_keys(EQUAL_NOISE[types[0]])
    for name in sorted({key for keys in _EXPLORATION_KEYS.values() for key in keys}):
        default = type(settings).model_fields[name].default
        if name not in used and getattr(settings, name) != default:
            shown = kind if isinstance(kind, str) else kind.use
            yield f"{prefix}exploration.{name}", f"{shown} does not use it; remove this key"
    if kind == "Random" and settings.random_steps:
        message = "all actions are random with exploration.type: Random; remove this key"
        yield f"{prefix}exploration.random_steps", message


def _memory_problems(
    algorithm: str, prefix: str, settings: PolicySettings, memories: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for name in MEMORY_SWITCHES:
        if getattr(settings.model, name) and name not in memories:
            message = f"{algorithm} replays single transitions, which no memory learns from"
            if memories:
                message = f"{algorithm} does not replay what this memory learns from"
            yield f"{prefix}model.{name}", f"{message}; remove this key"


def _capacity_problems(
    capacity: int, prefix: str, training: ReplayTraining
) -> Iterator[tuple[str, str]]:
    needed = training.num_steps_sampled_before_learning_starts
    if needed > capacity:
        of_policy = f"{prefix}training.num_steps_sampled_before_learning_starts"
        yield (
            of_policy if prefix else "replay.capacity",
            f"a buffer of {capacity} transitions loses some of the {needed} that "
            "num_steps_sampled_before_learning_starts asks for: set replay.capacity to "
            f"{needed} or more",
        )


def _lockstep_problems(config: ExperimentConfig, any_memory: bool) -> Iterator[tuple[str, str]]:
    key = "replay.mode"
    if not config.multi_agent.policies:
        yield key, "there is only one policy to keep in step; remove this key"
    if config.replay.prioritized:
        yield key, "env steps have no priorities; set replay.prioritized to false"
    if any_memory:
        yield key, "single env steps are drawn, which no memory learns from; set it to independent"
    for policy_id, policy in config.multi_agent.policies.items():
        for name in COMMON_IN_LOCKSTEP:
            if name in policy.training:
                message = "one for all policies in lockstep; it belongs to training"
                yield f"multi_agent.policies.{policy_id}.training.{name}", message


def least_bytes(spaces: Spaces) -> int:
    """Bytes that a transition takes at least; an observation that may be a stack, one frame."""
    num_bytes = TRANSITION_BYTES
    for space in spaces:
        shape, itemsize = space.shape or (), np.dtype(space.dtype or np.int8).itemsize
        is_stack = len(shape) == 3 and shape[0] <= _MOST_FRAMES
        num_bytes += math.prod(shape[1:] if is_stack else shape) * itemsize
    return num_bytes
