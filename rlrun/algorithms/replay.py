"""Replay: what algorithms that learn from buffers share, besides their losses.

Owns the buffers of all policies that learn, how many updates are due for the steps sampled, the
turns of sampling and learning, priorities, and the way of a sampled batch to the device. Must not
know what is learned from it: each policy has an `Updater` for that.

    M  rows of a minibatch
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.policies import ByPolicy
from rlrun.algorithms.result import Result
from rlrun.algorithms.sequence_replay import sequence_errors
from rlrun.algorithms.targets import TargetNetwork
from rlrun.config.batch_arithmetic import short_fragment_lengths
from rlrun.config.memory_checks import TRANSITION_BYTES, check_fits
from rlrun.config.policies import PolicySettings, addressed_settings
from rlrun.config.schedules import value_at
from rlrun.config.schema import (
    MEMORY_SWITCHES,
    Count,
    EnvRunnersConfig,
    ExperimentConfig,
    ExplorationConfig,
    ReplayConfig,
    TrainingConfig,
)
from rlrun.config.section import Positive
from rlrun.data import columns as col
from rlrun.data.nested import nest
from rlrun.data.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch
from rlrun.learning.learner import reduced
from rlrun.learning.loaded_batch import Rows
from rlrun.learning.losses import Statistics
from rlrun.policies.flat_parameters import as_array
from rlrun.policies.policy_mapping import Spaces
from rlrun.replay.multi_agent_replay_buffer import MultiAgentReplayBuffer
from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from rlrun.replay.replay_buffer import ReplayBuffer
from rlrun.replay.sequence_replay_buffer import SequenceReplayBuffer

COLUMNS = (
    *(col.OBS, col.ACTIONS, col.REWARDS, col.NEXT_OBS, col.TERMINATEDS),
    col.DISCOUNTS,
)

EXPLORATION_KEYS: dict[str, tuple[str, ...]] = {
    "EpsilonGreedy": ("epsilon", "runner_exponent"),
    "SoftQ": ("temperature",),
    "StochasticSampling": (),
    "Random": (),
    "GaussianNoise": ("scale", "stddev"),
    "OrnsteinUhlenbeckNoise": ("scale", "theta", "sigma"),
    "ParameterNoise": ("initial_stddev",),
}
"""Types of exploration, with the keys of section `exploration` that only they use."""

EQUAL_NOISE = {"EpsilonGreedy": "EpsilonGreedy", "StochasticSampling": "GaussianNoise"}
"""An algorithm's own type -> the one whose keys say how far ParameterNoise changes actions."""


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
    """Rewards summed before the target network's value is added; fewer where the episode ends."""


COMMON_IN_LOCKSTEP = (
    *("minibatch_size", "training_intensity"),
    "num_steps_sampled_before_learning_starts",
)
"""Settings that are common to all policies where all learn from the same env steps."""


U = TypeVar("U", bound="Updater")

_MOST_FRAMES = 8


class Updater(ABC):
    """Updates one policy; owns its target network and the like, but not its learner.

    Args:
        target: of the network that learns values.
    """

    def __init__(self, target: TargetNetwork) -> None:
        self.target = target

    @abstractmethod
    def coefficients(self, env_steps: int) -> dict[str, float]:
        """Values of the schedules that are reported, by name.

        Args:
            env_steps: where on its schedules the run is.
        """

    @abstractmethod
    def update(self, batch: SampleBatch, rng: np.random.Generator, env_steps: int) -> Statistics:
        """One update on a replayed batch.

        Args:
            env_steps: where on its schedules the run is.

        Returns:
            Scalars, and ``td_errors`` ``[M]``, NaN where a step was not learned from.
        """

    def end_round(self, steps: int) -> None:  # noqa: B027 - an optional hook
        """Called after the updates of a round of sampling, if there were any."""

    def get_state(self) -> dict[str, Any]:
        """Everything besides the learner's state and weights."""
        return {"target": self.target.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self.target.set_state(state["target"])


@dataclass
class _UpdatesDue:
    """Updates that are due for a policy; in lockstep, for all policies together."""

    training: ReplayTraining
    steps: int = 0
    """Env steps counted since its buffer can be sampled."""
    rows: float = 0.0
    """Transitions to replay for them."""

    def due(self, steps: int) -> int:
        """How many updates are due after so many env steps more; they count as made."""
        training, size = self.training, self.training.minibatch_size
        self.steps += steps
        if self.steps >= training.num_steps_sampled_before_learning_starts:
            self.rows += steps * training.training_intensity
        num_updates = int(self.rows // size)
        self.rows -= num_updates * size
        return num_updates

    def get_state(self) -> dict[str, Any]:
        """The steps and rows counted so far."""
        return {"steps": self.steps, "rows": self.rows}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self.steps, self.rows = int(state["steps"]), float(state["rows"])


@dataclass
class _Learned:
    """What a policy has learned in an iteration."""

    coefficients: dict[str, float]
    """As the iteration began."""
    updates: list[Statistics] = field(default_factory=list)
    num_rows: int = 0


def least_bytes(spaces: Spaces) -> int:
    """Bytes of a transition; where observations may be stacks, with one frame of each."""
    num_bytes = TRANSITION_BYTES
    for space in spaces:
        shape, itemsize = space.shape or (), np.dtype(space.dtype or np.int8).itemsize
        is_stack = len(shape) == 3 and shape[0] <= _MOST_FRAMES
        num_bytes += math.prod(shape[1:] if is_stack else shape) * itemsize
    return num_bytes


class Replay(Generic[U]):
    """Sampling and learning in turns, out of the buffers of all policies that learn.

    Args:
        make_updater: makes a policy's updater, given its id.
        make_buffer: makes a policy's buffer, given its id.
        round_steps: env steps between updates with ``rollout_fragment_length: auto``.
        reported: statistics of updates that are averaged over an iteration; None without updates.

    Attributes:
        buffer: holds the buffers of all policies.
        updaters: by policy id.
    """

    def __init__(
        self,
        algorithm: Algorithm[ReplayTraining],
        make_updater: Callable[[str], U],
        make_buffer: Callable[[str], ReplayBuffer],
        *,
        round_steps: int,
        reported: Sequence[str],
    ) -> None:
        self._algorithm, self._reported = algorithm, reported
        self._settings = algorithm.config.replay
        for policy_id in algorithm.policies.trained:
            capacity = self._settings.capacity
            num_bytes = capacity * least_bytes(algorithm.policies.module_spaces(policy_id))
            check_fits("replay.capacity", num_bytes, f"{capacity:,} transitions")
        self._in_lockstep = self._settings.mode == "lockstep"
        self.updaters = ByPolicy(make_updater, algorithm.policies.trained)
        self.buffer = MultiAgentReplayBuffer(make_buffer, mode=self._settings.mode)
        self._updates_due = ByPolicy(self._new_due)
        self._round_steps = round_steps
        self._planned_for: EnvRunnersConfig | None = None
        self._rounds: list[list[int]] = []

    def _new_due(self, policy_id: str) -> _UpdatesDue:
        algorithm = self._algorithm
        return _UpdatesDue(
            algorithm.training if self._in_lockstep else algorithm.training_of(policy_id)
        )

    @property
    def buffers(self) -> Mapping[str, ReplayBuffer]:
        """Policy id -> its buffer, once it has something."""
        return self.buffer.buffers

    def step(self) -> Result:
        """One iteration: rounds of sampling, each followed by the updates that are due and a sync.

        Returns:
            The `learners` part of the result.
        """
        algorithm = self._algorithm
        learned = {
            policy_id: _Learned(self.updaters[policy_id].coefficients(algorithm.env_steps))
            for policy_id in algorithm.policies.trained
        }
        settings = algorithm.config.env_runners
        if settings is not self._planned_for:  # at first, and when runners have come or gone
            size, self._planned_for = algorithm.training.train_batch_size, settings
            self._rounds = short_fragment_lengths(size, settings, self._round_steps)
        rounds, counted = self._rounds, algorithm.progress.counted_steps
        end = counted + algorithm.training.train_batch_size
        for lengths, following in zip(rounds, [*rounds[1:], rounds[0]], strict=True):
            if counted < end:  # whole episodes bring more steps than asked for
                counted = self._round(lengths, following, learned, counted)
        result: Result = {}
        for policy_id, own in learned.items():
            row = {
                **averages(own.updates, self._reported),
                "num_updates": len(own.updates),
                **own.coefficients,
                "replay_size": len(self.buffers.get(policy_id, ())),
            }
            result |= algorithm.learner_result(own.num_rows, row, policy_id)
        return result

    def _round(
        self,
        lengths: Sequence[int],
        following: Sequence[int],
        learned: Mapping[str, _Learned],
        before: int,
    ) -> int:
        """Sample and store a fragment of each runner, and make the updates that are due for it.

        Args:
            before: steps that are counted so far.

        Returns:
            The steps that are counted then.
        """
        algorithm, policies = self._algorithm, self._algorithm.policies
        phase, progress = algorithm.timers.phase, algorithm.progress
        with phase("sample"):
            sampled = algorithm.train_batch(algorithm.sample_round(lengths, following))
        steps = (counted := progress.counted_steps) - before
        batches = dict(policies.train_batches(sampled, progress))
        # Updates learn from buffers, so `policies_to_train` is asked without a batch.
        learning = [*filter(policies.is_policy_to_train, learned)]
        for policy_id in batches.keys() - policies.settings.keys():  # removed by a callback
            del batches[policy_id]
        with phase("transfer"):
            self.buffer.add(MultiAgentBatch(batches, steps))
        updated: dict[str, U] = {}
        with phase("learn"):
            env_steps = progress.env_steps
            for policy_id, batch, rng in self._minibatches(learning, steps):
                updated[policy_id] = updater = self.updaters[policy_id]
                statistics = updater.update(batch, rng, env_steps)
                errors = statistics.pop("td_errors")
                if self._settings.prioritized:
                    self._report_errors(policy_id, batch, errors)
                learned[policy_id].updates.append(statistics)
                learned[policy_id].num_rows += errors.shape[0]
            for updater in updated.values():
                updater.end_round(counted)
        if updated:
            algorithm.sync_weights()
        return counted

    def _minibatches(
        self, learning: Sequence[str], steps: int
    ) -> Iterator[tuple[str, SampleBatch, np.random.Generator]]:
        """The minibatches due after so many steps more: policy, M transitions, random numbers.

        Errors of one minibatch are to be reported before the next is drawn. In lockstep a minibatch
        is drawn for all policies together.
        """
        rng_of = self._algorithm.learner_rng
        buffers = self.buffer.buffers
        drawn_for = [name for name in learning if name in buffers and buffers[name].can_be_sampled]
        if drawn_for and self._in_lockstep:
            drawn_for = [DEFAULT_POLICY_ID]
        for drawn_id in drawn_for:
            updates = self._updates_due[drawn_id]
            rngs: dict[str, np.random.Generator] = {}
            for _ in range(updates.due(steps)):
                if not rngs:
                    rngs[drawn_id] = rng_of(drawn_id)
                size = updates.training.minibatch_size
                for policy_id, batch in self._draw(drawn_id, size, rngs[drawn_id], learning):
                    if policy_id not in rngs:
                        rngs[policy_id] = rng_of(policy_id)
                    yield policy_id, batch, rngs[policy_id]

    def _draw(
        self, drawn_id: str, size: int, rng: np.random.Generator, learning: Sequence[str]
    ) -> Iterable[tuple[str, SampleBatch]]:
        """A minibatch of M transitions of one policy.

        With a memory, it is as many sequences as hold M transitions at full length, and one at
        least; in lockstep, all transitions of M env steps, by policy.
        """
        if self._in_lockstep:
            return self.buffer.sample(size, rng, policies=learning).policy_batches.items()
        buffer = self.buffer.buffers[drawn_id]
        if not isinstance(buffer, PrioritizedReplayBuffer):
            return ((drawn_id, buffer.sample(size, rng)),)
        if isinstance(buffer, SequenceReplayBuffer):
            size = max(size // buffer.length, 1)
        beta = value_at(self._settings.beta, self._algorithm.env_steps)
        return ((drawn_id, buffer.sample(size, rng, beta=beta)),)

    def _report_errors(self, policy_id: str, batch: SampleBatch, td_errors: Any) -> None:
        """Let temporal-difference errors ``[M]`` become the priorities of a sampled batch."""
        buffer = self.buffers[policy_id]
        if isinstance(buffer, PrioritizedReplayBuffer):
            errors = abs(as_array(td_errors))
            ids = batch.column(col.ITEM_IDS)
            if isinstance(buffer, SequenceReplayBuffer):
                ids, errors = sequence_errors(batch, errors)
            if np.isfinite(errors).all():  # else the loss is not finite either, and training ends
                buffer.update_priorities(ids, errors + self._settings.epsilon)

    def copy_targets(self) -> None:
        """Let target networks become the networks that they follow."""
        for updater in self.updaters.values():
            updater.target.copy()

    def forget(self, policy_id: str) -> None:
        """Drop the updater, buffer and due updates of a policy."""
        for kept in (self.updaters, self.buffer, self._updates_due):
            kept.forget(policy_id)

    def get_state(self) -> dict[str, Any]:
        """Updaters, updates due, and the buffers if the `replay` section asks for that."""
        return {
            "updaters": self.updaters.get_state(),
            "updates_due": self._updates_due.get_state(),
            "buffer": self.buffer.get_state() if self._settings.store_in_checkpoints else None,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`; buffers that it lacks are filled anew."""
        self.updaters.set_state(state["updaters"])
        self._updates_due.clear()
        self._updates_due.set_state(state["updates_due"])
        if state["buffer"] is not None:
            self.buffer.set_state(state["buffer"])
        else:
            self.buffer.clear()
            for due in self._updates_due.values():
                due.steps = 0


def transition_buffer(settings: ReplayConfig, training: ReplayTraining) -> ReplayBuffer:
    """The buffer of single transitions that the `replay` section asks for."""
    capacity, n_step, gamma = settings.capacity, training.n_step, training.gamma
    if settings.prioritized:
        alpha = settings.alpha
        return PrioritizedReplayBuffer(capacity, n_step=n_step, gamma=gamma, alpha=alpha)
    return ReplayBuffer(capacity, n_step=n_step, gamma=gamma)


def replayed_rows(batch: SampleBatch) -> Rows:
    """The columns that losses read, as arrays ``[M, ...]``; weights are 1 if there are none."""
    columns = batch.columns(COLUMNS)
    weights = batch.get(col.WEIGHTS)
    nested = columns[0].dtype.names is not None
    rows = dict(zip(COLUMNS, map(nest, columns) if nested else columns, strict=True))
    rows[col.WEIGHTS] = np.ones(len(columns[0]), np.float32) if weights is None else weights
    return rows


def averages(updates: Sequence[Statistics], names: Sequence[str]) -> dict[str, float | None]:
    """These statistics over the updates of an iteration; None if there were none."""
    return {**dict.fromkeys(names), **(reduced(updates) if updates else {})}


def exploration_at(
    settings: ExplorationConfig, types: Sequence[str], env_steps: int
) -> dict[str, float]:
    """Arguments of `Policy.set_exploration` at this point of a run.

    Args:
        types: of exploration that the algorithm takes; the first is its own.
    """
    kind = settings.type or types[0]
    if kind == "ParameterNoise":
        kind = EQUAL_NOISE[types[0]]
    random = env_steps < settings.random_steps
    if kind == "EpsilonGreedy":
        return {"epsilon": 1.0 if random else value_at(settings.epsilon, env_steps)}
    present = {}
    if kind == "SoftQ":
        present["temperature"] = value_at(settings.temperature, env_steps)
    elif "scale" in EXPLORATION_KEYS[kind]:
        present["scale"] = value_at(settings.scale, env_steps)
    return {**present, "random": float(random)} if settings.random_steps else present


def replay_problems(
    algorithm: type[Algorithm[ReplayTraining]],
    config: ExperimentConfig,
    *,
    explorations: Sequence[str],
    memories: Sequence[str] = (),
) -> Iterator[tuple[str, str]]:
    """What is wrong with replay settings, as ``(key, message)``.

    Args:
        explorations: see `exploration_at`.
        memories: switches of `model` that the algorithm replays sequences for.
    """
    any_memory = False
    for prefix, settings in addressed_settings(config):
        yield from _memory_problems(config.algorithm, prefix, settings, memories)
        yield from _capacity_problems(
            config.replay.capacity, prefix, algorithm.training_in(settings)
        )
        yield from _exploration_problems(
            config.algorithm, prefix, settings.exploration, explorations
        )
        any_memory |= any(getattr(settings.model, name) for name in memories)
    if config.replay.burn_in and not any_memory:
        message = "there is no memory to bring up to date; leave it out, or set model.use_lstm"
        yield "replay.burn_in", message if memories else message.partition(", or")[0]
    if config.replay.mode == "lockstep":
        yield from _lockstep_problems(config, any_memory)


def _exploration_problems(
    algorithm: str, prefix: str, settings: ExplorationConfig, types: Sequence[str]
) -> Iterator[tuple[str, str]]:
    kind = settings.type or types[0]
    if kind not in types:
        yield f"{prefix}exploration.type", f"{algorithm} explores by {' or '.join(types)}"
        return
    used = EXPLORATION_KEYS[kind]
    if kind == "ParameterNoise":
        used += EXPLORATION_KEYS[EQUAL_NOISE[types[0]]]
    for name in sorted({key for keys in EXPLORATION_KEYS.values() for key in keys}):
        default = type(settings).model_fields[name].default
        if name not in used and getattr(settings, name) != default:
            yield f"{prefix}exploration.{name}", f"{kind} does not use it; leave it out"
    if kind == "Random" and settings.random_steps:
        message = "all actions are random with exploration.type: Random; leave it out"
        yield f"{prefix}exploration.random_steps", message


def _memory_problems(
    algorithm: str, prefix: str, settings: PolicySettings, memories: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for name in MEMORY_SWITCHES:
        if getattr(settings.model, name) and name not in memories:
            message = f"{algorithm} replays single transitions, which no memory learns from"
            if memories:
                message = f"{algorithm} does not replay what this memory learns from"
            yield f"{prefix}model.{name}", f"{message}; leave it out"


def _capacity_problems(
    capacity: int, prefix: str, training: ReplayTraining
) -> Iterator[tuple[str, str]]:
    needed = training.num_steps_sampled_before_learning_starts
    if needed > capacity:
        yield (
            f"{prefix}training.num_steps_sampled_before_learning_starts"
            if prefix
            else "replay.capacity",
            f"a buffer of {capacity} transitions loses some of the {needed} that "
            "num_steps_sampled_before_learning_starts asks for: set replay.capacity to "
            f"{needed} or more",
        )


def _lockstep_problems(config: ExperimentConfig, any_memory: bool) -> Iterator[tuple[str, str]]:
    key = "replay.mode"
    if not config.multi_agent.policies:
        yield key, "there is only one policy to keep in step; leave it out"
    if config.replay.prioritized:
        yield key, "env steps have no priorities; set replay.prioritized to false"
    if any_memory:
        yield key, "single env steps are drawn, which no memory learns from; set it to independent"
    for policy_id, policy in config.multi_agent.policies.items():
        for name in COMMON_IN_LOCKSTEP:
            if name in policy.training:
                message = "one for all policies in lockstep; it belongs to training"
                yield f"multi_agent.policies.{policy_id}.training.{name}", message
