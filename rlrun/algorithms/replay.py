"""Replay: what algorithms that learn from buffers share, besides their losses.

Owns the buffers of all policies that learn, the turns of sampling and learning, the number of
updates due for the steps sampled, priorities, and the columns that losses read. Must not know what
is learned from a minibatch: each policy has an `Updater` for that.

    M  rows of a minibatch
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.parts import ByPolicy
from rlrun.algorithms.replay_settings import (
    EQUAL_NOISE,
    ReplayTraining,
    exploration_keys,
    least_bytes,
    replay_problems,
)
from rlrun.algorithms.result import Result
from rlrun.algorithms.sequence_replay import sequence_errors
from rlrun.algorithms.targets import TargetNetwork
from rlrun.config.batch_arithmetic import fragment_lengths
from rlrun.config.memory_checks import check_fits
from rlrun.config.schedules import value_at
from rlrun.config.schema import EnvRunnersConfig, ExperimentConfig, ExplorationConfig
from rlrun.data import columns as col
from rlrun.data.nested import nest
from rlrun.data.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch
from rlrun.learning.learner import reduced
from rlrun.learning.loaded_batch import Rows
from rlrun.learning.losses import Statistics
from rlrun.policies.flat_parameters import as_array
from rlrun.replay.multi_agent_replay_buffer import MultiAgentReplayBuffer
from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from rlrun.replay.replay_buffer import ReplayBuffer
from rlrun.replay.sequence_replay_buffer import SequenceReplayBuffer
from rlrun.sampling.runner_messages import Exploration

COLUMNS = (col.OBS, col.ACTIONS, col.REWARDS, col.NEXT_OBS, col.TERMINATEDS, col.DISCOUNTS)

T = TypeVar("T", bound=ReplayTraining)
U = TypeVar("U", bound="Updater")


class ReplayAlgorithm(Algorithm[T], Generic[T, U]):
    """Base class of algorithms that sample a few steps and learn from a buffer, in turns.

    Attributes:
        replay: the buffers, and an updater for each policy that learns.
    """

    optional_sections = frozenset({"exploration", "replay"})
    trains_several_policies = True
    samples_distribution = False
    round_steps: ClassVar[int]
    """Env steps between updates with `rollout_fragment_length: auto`."""
    exploration_types: ClassVar[tuple[str, ...]]
    """Values that `exploration.type` may have; the first is the default."""
    memories: ClassVar[tuple[str, ...]] = ()
    """Switches of `model` for which sequences are replayed."""
    update_statistics: ClassVar[tuple[str, ...]]
    """Averaged over the updates of an iteration; None in one without any."""

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        yield from super().validate(config)
        yield from replay_problems(cls, config, cls.exploration_types, cls.memories)

    @abstractmethod
    def make_updater(self, policy_id: str) -> U:
        """Make the updater of a policy, whose learner exists already."""

    def make_buffer(self, policy_id: str) -> ReplayBuffer:
        """Make a policy's buffer: of single transitions, unless this is overridden."""
        settings, training = self.config.replay, self.training_of(policy_id)
        capacity, n_step, gamma = settings.capacity, training.n_step, training.gamma
        if settings.prioritized:
            alpha = settings.alpha
            return PrioritizedReplayBuffer(capacity, n_step=n_step, gamma=gamma, alpha=alpha)
        return ReplayBuffer(capacity, n_step=n_step, gamma=gamma)

    def setup(self) -> None:
        self.replay: Replay[U] = self.keep("replay", Replay(self))

    def exploration(self, policy_id: str) -> Exploration | None:
        """See `Algorithm.exploration`; each runner may have its own epsilon."""
        settings = self.policies.settings[policy_id].exploration
        common = exploration_at(settings, self.exploration_types, self.progress.env_steps)
        exponent = settings.runner_exponent
        runners = self.config.env_runners.num_env_runners
        if exponent is None or runners < 2:
            return common or None
        # Horgan et al. 2018, arXiv:1803.00933, appendix D.
        exponents = (1.0 + exponent * i / (runners - 1) for i in range(runners))
        return tuple({**common, "epsilon": common["epsilon"] ** each} for each in exponents)

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Load weights by name; target networks become copies of them."""
        super().set_weights(weights)
        for updater in self.replay.updaters.values():
            updater.target.copy()

    def training_step(self) -> Result:
        return self.replay.step()


class Replay(Generic[U]):
    """Sampling and learning in turns, with a buffer and an updater for each policy that learns.

    Attributes:
        buffer: holds the buffers of all policies.
        updaters: by policy id.
    """

    def __init__(self, algorithm: ReplayAlgorithm[Any, U]) -> None:
        self._algorithm, self._settings = algorithm, algorithm.config.replay
        self._in_lockstep = self._settings.mode == "lockstep"
        self.updaters = ByPolicy(algorithm.make_updater, algorithm.policies.trained)
        self.buffer = MultiAgentReplayBuffer(algorithm.make_buffer, mode=self._settings.mode)
        self._updates_due = ByPolicy(self._new_due)
        self._planned_for: EnvRunnersConfig | None = None
        self._rounds: list[list[int]] = []

    def _new_due(self, policy_id: str) -> _UpdatesDue:
        algorithm = self._algorithm
        return _UpdatesDue(
            algorithm.training if self._in_lockstep else algorithm.training_of(policy_id)
        )

    @property
    def buffers(self) -> Mapping[str, ReplayBuffer]:
        """Policy id -> its buffer, as soon as something was added to it."""
        return self.buffer.buffers

    def require_memory(self) -> int:
        """The bytes that all buffers take at least, once they are full.

        Raises:
            ConfigError: this machine has less memory.
        """
        policies, capacity = self._algorithm.policies, self._settings.capacity
        num_bytes = capacity * sum(
            least_bytes(policies.module_spaces(each)) for each in policies.trained
        )
        of_each = " of each policy" if policies.several else ""
        check_fits("replay.capacity", num_bytes, f"{capacity:,} transitions{of_each}")
        return num_bytes

    def step(self) -> Result:
        """One iteration: rounds of sampling, each followed by the updates that are due and a sync.

        Returns:
            The `learners` part of the result.
        """
        algorithm = self._algorithm
        stats = {
            policy_id: _UpdateStats(self.updaters[policy_id].coefficients(algorithm.env_steps))
            for policy_id in algorithm.policies.trained
        }
        settings = algorithm.config.env_runners
        if settings is not self._planned_for:  # at first, and when runners have come or gone
            if self._planned_for is None:
                self.require_memory()
            size, self._planned_for = algorithm.training.train_batch_size, settings
            self._rounds = fragment_lengths(size, settings, algorithm.round_steps)
        rounds, counted = self._rounds, algorithm.progress.counted_steps
        end = counted + algorithm.training.train_batch_size
        for lengths, next_lengths in zip(rounds, [*rounds[1:], rounds[0]], strict=True):
            if counted < end:  # whole episodes bring more steps than asked for
                counted = self._round(lengths, next_lengths, stats, counted)
        result: Result = {}
        for policy_id, policy_stats in stats.items():
            updates = policy_stats.updates
            row = {
                **dict.fromkeys(algorithm.update_statistics),
                **(reduced(updates) if updates else {}),
                "num_updates": len(updates),
                **policy_stats.coefficients,
                "replay_size": len(self.buffers.get(policy_id, ())),
            }
            result |= algorithm.learner_result(policy_stats.num_rows, row, policy_id)
        return result

    def _round(
        self,
        lengths: Sequence[int],
        next_lengths: Sequence[int],
        stats: Mapping[str, _UpdateStats],
        counted_before: int,
    ) -> int:
        """Sample and store a fragment of each runner, and make the updates that are due for it.

        Args:
            lengths, next_lengths: of this and the next round's fragments, by runner.
            stats: statistics of all policies that learn; the updates' are added to them.
            counted_before: env steps of the run, as `Progress.counted_steps` counts them.

        Returns:
            The same count after the round.
        """
        algorithm, policies = self._algorithm, self._algorithm.policies
        phase, progress = algorithm.timers.phase, algorithm.progress
        with phase("sample"):
            sampled = algorithm.train_batch(algorithm.sample_round(lengths, next_lengths))
        steps = (counted := progress.counted_steps) - counted_before
        trained_before = progress.trained_steps
        batches = dict(policies.train_batches(sampled, progress, replayed=True))
        # Updates learn from buffers, so `policies_to_train` is asked without a batch.
        learning = [*filter(policies.is_policy_to_train, stats)]
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
                stats[policy_id].updates.append(statistics)
                stats[policy_id].num_rows += errors.shape[0]
            for updater in updated.values():
                updater.end_round(counted)
        if updated or progress.trained_steps > trained_before:  # custom policies have learned
            algorithm.sync_weights()
        return counted

    def _minibatches(
        self, learning: Sequence[str], steps: int
    ) -> Iterator[tuple[str, SampleBatch, np.random.Generator]]:
        """The minibatches due after ``steps`` more env steps: policy, M transitions, generator.

        They are drawn one by one, so that the errors of one set the priorities of the next. In
        lockstep, one draw yields the minibatches of all policies.
        """
        rng_of = self._algorithm.learner_rng
        buffers = self.buffer.buffers
        sampled = [name for name, buffer in buffers.items() if buffer.can_be_sampled]
        learned = [name for name in learning if name in sampled]
        if sampled and self._in_lockstep:  # the default policy stands for all of them together
            sampled, learned = [DEFAULT_POLICY_ID], [DEFAULT_POLICY_ID] * bool(learned)
        for paused in (name for name in sampled if name not in learned):
            self._updates_due[paused].steps += steps
        for sampled_id in learned:
            updates = self._updates_due[sampled_id]
            rngs: dict[str, np.random.Generator] = {}
            for _ in range(updates.due(steps)):
                if not rngs:
                    rngs[sampled_id] = rng_of(sampled_id)
                size = updates.training.minibatch_size
                for policy_id, batch in self._draw(sampled_id, size, rngs[sampled_id], learning):
                    if policy_id not in rngs:
                        rngs[policy_id] = rng_of(policy_id)
                    yield policy_id, batch, rngs[policy_id]

    def _draw(
        self, policy_id: str, size: int, rng: np.random.Generator, learning: Sequence[str]
    ) -> Iterable[tuple[str, SampleBatch]]:
        """Draw a minibatch of ``size`` transitions of a policy; returns it with the policy's id.

        From a buffer of sequences, draw as many as have ``size`` transitions at full length, at
        least one. In lockstep, draw ``size`` env steps: the transitions of each policy.
        """
        if self._in_lockstep:
            return self.buffer.sample(size, rng, policies=learning).policy_batches.items()
        buffer = self.buffer.buffers[policy_id]
        if not isinstance(buffer, PrioritizedReplayBuffer):
            return ((policy_id, buffer.sample(size, rng)),)
        if isinstance(buffer, SequenceReplayBuffer):
            size = max(size // buffer.length, 1)
        beta = value_at(self._settings.beta, self._algorithm.env_steps)
        return ((policy_id, buffer.sample(size, rng, beta=beta)),)

    def _report_errors(self, policy_id: str, batch: SampleBatch, td_errors: Any) -> None:
        """Set the priorities of a sampled batch by its temporal-difference errors ``[M]``."""
        buffer = self.buffers[policy_id]
        if isinstance(buffer, PrioritizedReplayBuffer):
            errors = abs(as_array(td_errors))
            ids = batch.column(col.ITEM_IDS)
            if isinstance(buffer, SequenceReplayBuffer):
                ids, errors = sequence_errors(batch, errors)
            if np.isfinite(errors).all():  # else the loss is not finite either, and training ends
                buffer.update_priorities(ids, errors + self._settings.epsilon)

    def forget(self, policy_id: str) -> None:
        """Drop the updater, buffer and due updates of a policy."""
        for kept in (self.updaters, self.buffer, self._updates_due):
            kept.forget(policy_id)

    def get_state(self) -> dict[str, Any]:
        """Updaters, updates due, and with `replay.store_in_checkpoints` the buffers."""
        return {
            "updaters": self.updaters.get_state(),
            "updates_due": self._updates_due.get_state(),
            "buffer": self.buffer.get_state() if self._settings.store_in_checkpoints else None,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`; without buffers in it, they are filled anew."""
        self.updaters.set_state(state["updaters"])
        self._updates_due.clear()
        self._updates_due.set_state(state["updates_due"])
        if state["buffer"] is not None:
            self.buffer.set_state(state["buffer"])
        else:
            self.buffer.clear()
            for due in self._updates_due.values():
                due.steps = 0


@dataclass
class _UpdatesDue:
    """How many updates of a policy are due; in lockstep, of all policies together."""

    training: ReplayTraining
    steps: int = 0
    """Env steps since the buffer can be sampled."""
    rows: float = 0.0
    """Transitions still to be replayed for them."""

    def due(self, steps: int) -> int:
        """How many updates are due after ``steps`` more env steps; they count as made."""
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
class _UpdateStats:
    """Statistics of one policy's updates in an iteration."""

    coefficients: dict[str, float]
    """Values of the updater's schedules at the start of the iteration."""
    updates: list[Statistics] = field(default_factory=list)
    num_rows: int = 0


class Updater(ABC):
    """Updates one policy; owns its target network and the like, but not its learner.

    Schedules are functions of ``env_steps``, the env steps of the run so far.

    Args:
        target: the slow copy of the network that learns values.
    """

    def __init__(self, target: TargetNetwork) -> None:
        self.target = target

    @abstractmethod
    def coefficients(self, env_steps: int) -> dict[str, float]:
        """Present values of schedules for the result, by name."""

    @abstractmethod
    def update(self, batch: SampleBatch, rng: np.random.Generator, env_steps: int) -> Statistics:
        """One update on a replayed batch.

        Returns:
            Scalars, and ``td_errors`` ``[M]``, NaN for steps without a loss.
        """

    def end_round(self, steps: int) -> None:  # noqa: B027 - an optional hook
        """Called after the updates of a round, if there were any; ``steps`` are the run's."""

    def get_state(self) -> dict[str, Any]:
        """Everything besides the learner's state and weights."""
        return {"target": self.target.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self.target.set_state(state["target"])


def replayed_rows(batch: SampleBatch) -> Rows:
    """The columns that losses read, as arrays ``[M, ...]``; weights are 1 without priorities."""
    columns = batch.columns(COLUMNS)
    weights = batch.get(col.WEIGHTS)
    nested = columns[0].dtype.names is not None
    rows = dict(zip(COLUMNS, map(nest, columns) if nested else columns, strict=True))
    rows[col.WEIGHTS] = np.ones(len(columns[0]), np.float32) if weights is None else weights
    return rows


def exploration_at(
    settings: ExplorationConfig, types: Sequence[str], env_steps: int
) -> dict[str, float]:
    """Arguments of `Policy.set_exploration` after ``env_steps`` of the run.

    Args:
        types: see `ReplayAlgorithm.exploration_types`.
    """
    kind = settings.type or types[0]
    if kind == "ParameterNoise":
        kind = EQUAL_NOISE[types[0]]
    random = env_steps < settings.random_steps
    if kind == "EpsilonGreedy":
        return {"epsilon": 1.0 if random else value_at(settings.epsilon, env_steps)}
    schedules = {
        "epsilon": settings.epsilon,
        "temperature": settings.temperature,
        "scale": settings.scale,
    }
    used = schedules.keys() & exploration_keys(kind)
    present = {name: value_at(schedules[name], env_steps) for name in sorted(used)}
    return {**present, "random": float(random)} if settings.random_steps else present
