"""Algorithm: env runners, a learner and the loop that joins them.

An algorithm writes `training_step`, and `make_learner` and `setup` where it needs them; everything
else here is shared: building runners, counting, evaluation, the result, state. It knows nothing of
files, consoles or stop criteria, which belong to the experiment.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, cast

import numpy as np
from typing_extensions import TypeVar

from rlrun.algorithms.algorithm_state import algorithm_state, set_algorithm_state
from rlrun.algorithms.callbacks import make_callbacks
from rlrun.algorithms.central_connectors import central_connectors
from rlrun.algorithms.evaluator import Evaluator
from rlrun.algorithms.multi_agent import MultiAgentPolicies, several_policies
from rlrun.algorithms.result import (
    EpisodeStatistics,
    PhaseTimers,
    Result,
    RunnerStatistics,
    evaluation_result,
    iteration_result,
    minimums_met,
)
from rlrun.algorithms.runners import find_spaces, runner_spec, start_env_runners
from rlrun.algorithms.unneeded_columns import unneeded_columns
from rlrun.config.batch_arithmetic import fragment_lengths
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.policies import PolicySettings, policy_settings
from rlrun.config.registry import import_object
from rlrun.config.schema import ExperimentConfig, TrainingConfig
from rlrun.data.multi_agent_batch import DEFAULT_POLICY_ID
from rlrun.data.sample_batch import SampleBatch, concat_samples
from rlrun.learning.learner import Learner
from rlrun.learning.learner_group import build_learner
from rlrun.policies.numpy_policy import build_policy
from rlrun.policies.rl_module import ModuleFactory, RLModule, build_module
from rlrun.policies.seeded_module import seeded_module
from rlrun.sampling.runner_messages import Exploration, PolicyFactory, SampleReply, SampleRequest
from rlrun.sampling.seeding import learner_rng, policy_key, weights_seed

T_co = TypeVar("T_co", bound=TrainingConfig, covariant=True, default=TrainingConfig)


class Algorithm(ABC, Generic[T_co]):
    """Base of all algorithms; ``Algorithm[T]`` with the type of their training settings.

    Args:
        config: a checked experiment, or the builder of one.
        address: of a Ray cluster to join; None starts Ray here if there are remote env runners.

    Attributes:
        policies: what each policy is made from, by its id.
        learners: of each policy, by its id; `learner` is that of the only one.
        iteration, env_steps, agent_steps, trained_steps, next_fragment: what has been done so far.
        episode_statistics, runner_statistics: what these have reported.
        evaluator: plays episodes with the algorithm as it is.
        unneeded: what env runners need not put into their batches, by policy.
        acting_weights: what env runners act with from the next request on.
        weights_version: counts updates of these weights.
        timers: where the time goes; the experiment counts its own phases here, too.
    """

    Training: ClassVar[type[TrainingConfig]] = TrainingConfig
    Config: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    optional_sections: ClassVar[frozenset[str]] = frozenset()
    """Which of the sections `exploration` and `replay` this algorithm uses."""
    several_learners: ClassVar[bool] = False
    """Whether all its steps are made by `Learner.update` or `accumulate`, which can be shared."""
    trial_of_columns: ClassVar[Literal["training_step", "first_batch"] | None] = "training_step"
    """What `unneeded_columns` tries; "first_batch": all is read before the next is sampled."""
    trains_several_policies: ClassVar[bool] = False
    """Whether `training_step` goes through `train_batches`, and so takes `multi_agent`."""

    def __init__(
        self, config: ExperimentConfig | AlgorithmConfig, *, address: str | None = None
    ) -> None:
        if isinstance(config, AlgorithmConfig):
            config = config.experiment()
        if config.seed is None:
            config = config.model_copy(update={"seed": secrets.randbits(31)})
        assert config.seed is not None
        self.config, self.seed = config, config.seed
        self.policies = policy_settings(config, DEFAULT_POLICY_ID)
        self.iteration = self.env_steps = self.agent_steps = self.trained_steps = 0
        self.weights_version = self.next_fragment = 0
        self.time_s = 0.0
        self.timers = PhaseTimers()
        self._callbacks = make_callbacks(config.callbacks)
        batch_size = config.training.train_batch_size
        self._fragment_lengths = fragment_lengths(batch_size, config.env_runners)
        self.episode_statistics = EpisodeStatistics(config.report.smoothing_episodes)
        factories = {policy_id: self.policy_factory(policy_id) for policy_id in self.policies}
        self._runner_spec = runner_spec(
            config, self.seed, factories, self.policies, self._callbacks
        )
        self.env_runner_group = start_env_runners(config, self._runner_spec, address)
        self.spaces, agents = find_spaces(self._runner_spec, self.env_runner_group)
        self.connectors = central_connectors(self.spaces, self._runner_spec)
        self.evaluator = Evaluator(self, self._runner_spec)
        self.runner_statistics = RunnerStatistics(config.env_runners.sampler_perf_stats_ema_coef)
        networks = [name for name, policy in self.policies.items() if policy.use is None]
        self.learners = {policy_id: self.make_learner(policy_id) for policy_id in networks}
        several = self._runner_spec.multi_agent is not None
        self.multi_agent = MultiAgentPolicies(self, agents) if several else None
        self.setup()
        self.acting_weights = self.current_weights()
        self.unneeded = unneeded_columns(self, self._runner_spec, self._callbacks)
        self.env_runner_group.wait_until_built()
        self._call_back("on_algorithm_init")
        self.timers.restart()

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """What is wrong with a config of this algorithm, as ``(key, message)``."""
        return iter(())

    @classmethod
    def training_in(cls, settings: ExperimentConfig | PolicySettings) -> T_co:
        """The training settings there, of the type that the loader made them: `Training`."""
        return cast("T_co", settings.training)

    @property
    def training(self) -> T_co:
        """The experiment's training settings."""
        return self.training_in(self.config)

    def training_of(self, policy_id: str) -> T_co:
        """One policy's training settings."""
        return self.training_in(self.policies[policy_id])

    @property
    def learner(self) -> Learner:
        """The learner of the default policy, where that is the only one."""
        return self.learners[DEFAULT_POLICY_ID]

    @property
    def trained_policies(self) -> list[str]:
        """Ids of the policies whose networks learn."""
        return [policy_id for policy_id in self.learners if self.policies[policy_id].train]

    def make_learner(self, policy_id: str) -> Learner:
        """The learner of one policy; overridden by algorithms that make it otherwise."""
        training = self.policies[policy_id].training
        return build_learner(self.build_module(policy_id), training, self.config.learners)

    def setup(self) -> None:
        """Make whatever the algorithm keeps besides its learners, which are there."""

    @abstractmethod
    def training_step(self) -> dict[str, Any]:
        """Sample, learn, sync; returns the `learners` part of the result."""

    def module_factory(self, policy_id: str) -> ModuleFactory:
        """What makes a learner's network; overridden together with `policy_factory`."""
        return build_module

    def policy_factory(self, policy_id: str) -> PolicyFactory:
        """What makes the policy that env runners act with, before `setup`; must be picklable."""
        return build_policy

    def exploration(self, policy_id: str) -> Exploration | None:
        """What a policy in env runners is told about exploring at this point of the run."""
        return None

    def forget_policy(self, policy_id: str) -> None:
        """Drop what is kept of a policy besides its learner: it has been removed."""

    def _call_back(self, name: str, *arguments: Any) -> None:
        """Call this method of each of the user's callbacks."""
        for callbacks in self._callbacks:
            getattr(callbacks, name)(self, *arguments)

    def build_module(
        self, policy_id: str = DEFAULT_POLICY_ID, factory: ModuleFactory | None = None
    ) -> RLModule:
        """A policy's module, its initial weights drawn from the run's seed.

        Args:
            factory: makes another network of the policy's; `module_factory` makes the one it acts
                with.
        """
        spaces = self.connectors.output_space(policy_id), self.connectors.action_space(policy_id)
        seed = weights_seed(self.seed, *_key_of(policy_id))
        model = self.policies[policy_id].model
        return seeded_module(factory or self.module_factory(policy_id), *spaces, model, seed)

    # -- one iteration -------------------------------------------------------------------------

    def train(self) -> Result:
        """One iteration: `training_step` until the report's minimums are met, and evaluation."""
        steps_before = self.env_steps
        trained_before = self.trained_steps
        while True:
            learners = self.training_step()
            if self.multi_agent is not None:
                learners = self.multi_agent.learned(learners)
            sampled = self.env_steps - steps_before
            trained = self.trained_steps - trained_before
            if minimums_met(self.config.report, self.timers.elapsed(), sampled, trained):
                break
        self.iteration += 1
        evaluation = self._evaluate_if_due()
        timers, wall_s = self.timers.lap()
        self.time_s += wall_s
        result = iteration_result(self, self.env_steps - steps_before, wall_s) | {
            "learners": learners,
            "evaluation": evaluation,
            "timers": timers,
        }
        self._call_back("on_train_result", result)
        return result

    # -- sampling ------------------------------------------------------------------------------

    @property
    def counted_steps(self) -> int:
        """Env steps so far, or agent steps where `multi_agent.count_steps_by` says so."""
        by_agent = self.config.multi_agent.count_steps_by == "agent_steps"
        return self.agent_steps if by_agent else self.env_steps

    def sample(self, rounds: Sequence[Sequence[int]] | None = None) -> Any:
        """A train batch of exactly ``train_batch_size`` env steps, sampled synchronously.

        Args:
            rounds: steps of each lane, by round and runner, for other numbers of env steps.

        Returns:
            A SampleBatch, or a MultiAgentBatch of several policies.
        """
        with self.timers.phase("sample"):
            replies: list[SampleReply] = []
            for lengths in self._fragment_lengths if rounds is None else rounds:
                replies += self.sample_round(lengths)
            return self.join(replies)

    def join(self, replies: Sequence[SampleReply]) -> Any:
        """The batches of these replies as one, which callbacks may look at."""
        batches = [reply.batch for reply in replies]
        batch = batches[0] if len(batches) == 1 else concat_samples(batches)
        if self.config.env_runners.compress_observations:
            batch.decompress_if_needed()
        self._call_back("on_sample_end", batch)
        return batch

    def sample_round(self, lengths: Sequence[int]) -> list[SampleReply]:
        """One fragment from each healthy runner, acted with the present weights."""
        replies = self.env_runner_group.sample(self.next_request(), lengths, self.acting_weights)
        self.book(replies)
        return replies

    def next_request(self, length: int = 0) -> SampleRequest:
        """What to ask for next: a fragment with a number, statistics and exploration of its own."""
        request = SampleRequest(
            fragment=self.next_fragment,
            length=length,
            weights_version=self.weights_version,
            connector_state=self._connector_state(),
            exploration=self.explorations(),
            unneeded=self.unneeded,
            policies=None if self.multi_agent is None else dict(self.policies),
        )
        self.next_fragment += 1
        return request

    def book(self, replies: Sequence[SampleReply]) -> None:
        """Take what replies say into the books: steps, episodes, timings, statistics."""
        for reply in replies:
            self.env_steps += reply.env_steps
            self.agent_steps += reply.agent_steps
            self.episode_statistics.add(reply.episodes)
            if self.multi_agent is not None:
                self.multi_agent.count(reply.episodes)
            if self._callbacks:
                for episode in reply.episodes:
                    self._call_back("on_episode_end", episode)
            self.runner_statistics.add(reply)
        if self.config.env_runners.use_worker_filter_stats and not self.connectors.identity:
            self.connectors.apply_deltas([reply.connector_deltas for reply in replies])

    def explorations(self) -> dict[str, Exploration]:
        """What all policies in env runners are told about exploring."""
        told = {policy_id: self.exploration(policy_id) for policy_id in self.policies}
        return {policy_id: each for policy_id, each in told.items() if each is not None}

    def _connector_state(self) -> dict[str, Any] | None:
        if self.connectors.identity or not self.config.env_runners.update_worker_filter_stats:
            return None
        # Before the first fragment nothing has been merged.
        return None if self.next_fragment == 0 else self.connectors.get_state()

    def add_policy(self, policy_id: str, *, like: str, train: bool = False) -> None:
        """Add a policy with the settings and present weights of another; for episodes to come.

        Raises ValueError where there is one agent only, or a policy of that id.
        """
        several_policies(self).add(policy_id, like, train)
        self.sync_weights()

    def remove_policy(self, policy_id: str) -> None:
        """Remove a policy that was added; episodes in which an agent plays it are given up."""
        several_policies(self).remove(policy_id)
        self.sync_weights()

    def sync_weights(self) -> None:
        """Let the next request carry the learner's weights, as one buffer under a new version."""
        with self.timers.phase("sync"):
            self.acting_weights = self.current_weights()
            self.weights_version += 1

    def current_weights(self) -> Any:
        """What env runners act with: one flat vector for each policy."""
        several = self.multi_agent
        return self.learner.get_weights() if several is None else several.weights()

    # -- learning ------------------------------------------------------------------------------

    def train_batches(self, batch: Any) -> Iterator[tuple[str, SampleBatch]]:
        """What each policy is to learn from, as ``(policy id, batch)``."""
        if self.multi_agent is not None:
            yield from self.multi_agent.train_batches(batch)
        else:
            yield DEFAULT_POLICY_ID, batch

    def learner_rng(self, policy_id: str = DEFAULT_POLICY_ID) -> np.random.Generator:
        """Random numbers of this update, from the run's seed and the weights' version."""
        return learner_rng(self.seed, self.weights_version, *_key_of(policy_id))

    def learner_result(
        self,
        trained_steps: int,
        statistics: Mapping[str, Any],
        policy_id: str = DEFAULT_POLICY_ID,
    ) -> Result:
        """The `learners` part of the result for one policy."""
        self.trained_steps += trained_steps
        row = {"num_agent_steps_trained": trained_steps, "learner_stats": dict(statistics)}
        return {policy_id: row}

    # -- evaluation ----------------------------------------------------------------------------

    def _evaluate_if_due(self) -> Result:
        interval = self.config.evaluation.interval
        if interval is None or self.iteration % interval:
            return evaluation_result(None, self.multi_agent)
        with self.timers.phase("evaluate"):
            return self.evaluate()

    def evaluate(self) -> Result:
        """Play `evaluation.episodes` fresh episodes; changes nothing that training depends on."""
        self._call_back("on_evaluate_start")
        result = evaluation_result(self.evaluator.play(), self.multi_agent)
        self._call_back("on_evaluate_end", result)
        return result

    # -- state ---------------------------------------------------------------------------------

    def get_weights(self) -> dict[str, np.ndarray]:
        """Copies of all weights by parameter name; by ``policy/parameter`` if there are several."""
        if self.multi_agent is not None:
            return self.multi_agent.named_weights()
        return self.learner.named_weights()

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights by name; the env runners get them with the next request."""
        if self.multi_agent is not None:
            self.multi_agent.load_named_weights(weights)
        else:
            self.learner.load_named_weights(weights)
        self.acting_weights = self.current_weights()
        self.weights_version += 1  # or whoever has weights of this version would keep those

    def get_state(self) -> dict[str, Any]:
        """Everything besides the weights that the next iteration depends on."""
        return algorithm_state(self)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` was called; the weights come separately."""
        set_algorithm_state(self, state)
        self._call_back("on_checkpoint_loaded")
        self.timers.restart()

    def get_extra_state(self) -> dict[str, Any]:
        """What this algorithm keeps besides; overridden together with `set_extra_state`."""
        return {}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_extra_state` returned."""

    def save(self, path: str | Path) -> None:
        """Write a checkpoint into the folder ``path``."""
        # The experiment stands above this room, so it is reached by name.
        import_object("rlrun.experiment.saving:save_algorithm")(self, Path(path), {})

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint folder."""
        import_object("rlrun.experiment.saving:restore_algorithm")(self, Path(path))

    def stop(self) -> None:
        """Stop env runners and learners, close environments."""
        self.env_runner_group.stop()
        for learner in self.learners.values():
            learner.stop()
        self.evaluator.stop()


def _key_of(policy_id: str) -> tuple[int, ...]:
    """What a policy adds to the keys of its random numbers; the default policy adds nothing."""
    return () if policy_id == DEFAULT_POLICY_ID else (policy_key(policy_id),)
