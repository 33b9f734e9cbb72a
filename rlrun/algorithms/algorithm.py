"""Algorithm: env runners, policies that learn, and the iteration that joins them.

A subclass defines `training_step`, and `make_learner` and `setup` if needed. `Policies` holds what
belongs to the policies, `Progress` the counters and statistics. Must not know run folders, consoles
or stop criteria, which are the experiment's.
"""

from __future__ import annotations

import copy
import logging
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar, Generic, Self, cast

import numpy as np
from typing_extensions import TypeVar

from rlrun.actors.asynchronous import RoundAhead
from rlrun.algorithms.callbacks import call_back, make_callbacks
from rlrun.algorithms.evaluator import Evaluator
from rlrun.algorithms.parts import Part, Parts
from rlrun.algorithms.policies import Policies
from rlrun.algorithms.progress import Progress
from rlrun.algorithms.result import EpisodeStatistics, Result, evaluation_result, require_counters
from rlrun.algorithms.runners import find_spaces, resized, runner_spec, start_env_runners, with_ray
from rlrun.algorithms.unused_settings import unused_settings
from rlrun.checkpoint.checkpoint import (
    read_checkpoint,
    restore_checkpoint,
    take_checkpoint,
    write_checkpoint,
)
from rlrun.checkpoint.checkpoint_folder import algorithm_at
from rlrun.checkpoint.initial_weights import Sources, begin_with, read_sources
from rlrun.config.batch_arithmetic import fragment_lengths, fragment_problems, stream_problems
from rlrun.config.builder import AlgorithmConfig, experiment_of
from rlrun.config.policies import PolicySettings, addressed_settings
from rlrun.config.retired import OF_ALGORITHMS, OldNames
from rlrun.config.schema import ExperimentConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch, concat_samples
from rlrun.data.seeding import (
    Role,
    generators_seed,
    learner_rng,
    policy_key,
    seeded_generators,
    weights_seed,
)
from rlrun.learning.learner import Learner
from rlrun.learning.learner_group import build_learner
from rlrun.policies.catalog import build_module, seeded_module
from rlrun.policies.masked_module import ModuleFactory
from rlrun.policies.numpy_policy import build_policy
from rlrun.policies.rl_module import RLModule
from rlrun.sampling.acting_policy import ActingPolicy
from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.runner_messages import (
    Exploration,
    PolicyFactory,
    SampleReply,
    SampleRequest,
    policy_numbers,
)

_log = logging.getLogger(__name__)

T_co = TypeVar("T_co", bound=TrainingConfig, covariant=True, default=TrainingConfig)
P = TypeVar("P", bound=Part)


class Algorithm(OldNames, ABC, Generic[T_co]):
    """Base class of all algorithms; ``Algorithm[T]`` with the type of their training settings.

    Args:
        config: a checked experiment, or the builder of one.
        address: of a Ray cluster to join; None starts Ray here if there are remote env runners.

    Attributes:
        policies: settings, learners, connectors and acting weights of each policy.
        learners: `policies.learners`, one for each policy that is a network, by its id.
        progress: counters and statistics.
        timers: `progress.timers`.
        env_runner_group: the env runners.
        evaluator: evaluates the present policies.
    """

    Training: ClassVar[type[TrainingConfig]] = TrainingConfig
    Config: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    optional_sections: ClassVar[frozenset[str]] = frozenset()
    """Which of the sections `exploration` and `replay` this algorithm uses."""
    several_learners: ClassVar[bool] = False
    """Whether it learns by `Learner.update` or `accumulate` alone, which learners can share."""
    columns_read: ClassVar[frozenset[str]] = frozenset({col.OBS, col.NEXT_OBS, col.ACTIONS})
    """Columns that are always sent, besides those that are read in the first iteration: name here
    what is read only later."""
    asynchronous: ClassVar[bool] = False
    """Whether a train batch consists of fragments as they arrive, rather than of whole rounds."""
    samples_distribution: ClassVar[bool] = True
    """Whether actions come from a distribution, so that `model.distribution` applies."""
    trains_several_policies: ClassVar[bool] = False
    """Whether `training_step` goes through `train_batches`, and so takes `multi_agent`."""

    old_names = OF_ALGORITHMS

    def __init__(
        self,
        config: ExperimentConfig | AlgorithmConfig | None = None,
        *,
        address: str | None = None,
        **old: Any,
    ) -> None:
        config = experiment_of(type(self), config, old)
        self.seed = secrets.randbits(31) if config.seed is None else config.seed
        self.config: ExperimentConfig = config.model_copy(update={"seed": self.seed})
        self.policies, self.progress = Policies(self.config), Progress(self.config)
        self.learners, self.timers = self.policies.learners, self.progress.timers
        self._parts = Parts()
        sources = read_sources(self.config)  # before anything is started
        self._callbacks = make_callbacks(config.callbacks)
        self._stopped = False
        self._calls_back_in: int | None = None  # the thread
        with seeded_generators(generators_seed(self.seed, Role.TRAIN, 0)), ExitStack() as built:
            self._build(with_ray(self.config, address), built, sources)
            self._to_stop = built.pop_all()
        self.timers.lap()

    def _build(self, config: ExperimentConfig, built: ExitStack, sources: Sources) -> None:
        factories = {policy_id: self.policy_factory(policy_id) for policy_id in self.policies}
        spec = runner_spec(config, self.seed, self.policies.settings, factories, self._callbacks)
        self._rounds = fragment_lengths(self.training.train_batch_size, config.env_runners)
        self.env_runner_group = group = start_env_runners(config, spec)
        built.callback(group.stop)
        self._ahead: RoundAhead | None = None
        if config.env_runners.sample_async:
            ahead = RoundAhead(group, self.next_request, self.repeated_request)
            self._ahead = self.keep("ahead", ahead)
        built.callback(self.policies.stop)
        self.policies.build(spec, *find_spaces(spec, group), self.make_learner)
        for address, reason in unused_settings(config, self.policies):
            _log.warning("%s has no effect: %s", address, reason)
        self.evaluator = Evaluator(config, spec, self.policies, self.explorations)
        built.callback(self.evaluator.stop)
        given = {*vars(self)}
        self.setup()
        made = {name: value for name, value in vars(self).items() if name not in given}
        self._parts.warn_of_others(made, self.policies.modules())
        self.policies.acting_weights = self.policies.present_weights()
        begin_with(sources, self)
        self.env_runner_group.wait_until_built()
        self.evaluator.wait_until_built()
        if self._callbacks:
            self.policies.before_learning = partial(self._call_back, "on_learn_on_batch")
            for policy_id in self.policies:
                self._call_back("on_create_policy", policy_id)
        self._call_back("on_algorithm_init")

    @classmethod
    def from_checkpoint(
        cls,
        path: str | Path,
        overrides: Sequence[str] = (),
        *,
        address: str | None = None,
        trust: bool = False,
    ) -> Self:
        """The algorithm as it was when a checkpoint was written; `train` continues from there.

        Args:
            path: a checkpoint, or a run folder, whose best checkpoint is taken.
            overrides: ``KEY=VALUE`` texts laid over the experiment's settings.
            address: of a Ray cluster to join.
            trust: import the code that it names, even if this user has not signed it.

        Raises:
            CheckpointError: there is none, or one of another class. Others as `load_experiment`.
        """
        return cast("Self", algorithm_at(Path(path), cls, overrides, address=address, trust=trust))

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """Problems of a config of this algorithm, as ``(key, message)``."""
        problems = stream_problems if cls.asynchronous else fragment_problems
        yield from problems(cls.training_in(config).train_batch_size, config.env_runners)
        for prefix, settings in addressed_settings(config):
            for key, message in cls.policy_problems(settings):
                yield f"{prefix}{key}", message

    @classmethod
    def policy_problems(cls, settings: PolicySettings) -> Iterator[tuple[str, str]]:
        """Settings of one policy that contradict each other, as ``(key, message)``."""
        yield from ()

    @classmethod
    def training_in(cls, settings: ExperimentConfig | PolicySettings) -> T_co:
        """The training settings of an experiment or a policy, as a `Training`."""
        return cast("T_co", settings.training)

    @property
    def training(self) -> T_co:
        """The experiment's training settings."""
        return self.training_in(self.config)

    def training_of(self, policy_id: str) -> T_co:
        """One policy's training settings."""
        return cast("T_co", self.policies.settings[policy_id].training)

    def policy_factory(self, policy_id: str) -> PolicyFactory:
        """A function to make the env runners' policy, picklable; asked for before `setup`."""
        return build_policy

    def module_factory(self, policy_id: str) -> ModuleFactory:
        """A function to make a learner's network; overridden together with `policy_factory`."""
        return build_module

    def make_learner(self, policy_id: str) -> Learner:
        """Make the learner of one policy."""
        policy, module = self.policies[policy_id], self.build_module(policy_id)
        return build_learner(module, policy.training, self.config.learners, learns=policy.train)

    def build_module(
        self, policy_id: str = DEFAULT_POLICY_ID, factory: ModuleFactory | None = None
    ) -> RLModule:
        """A policy's module, or another network for it, with weights from the run's seed."""
        spaces, model = self.policies.module_spaces(policy_id), self.policies[policy_id].model
        seed = weights_seed(self.seed, *_key_of(policy_id))
        return seeded_module(factory or self.module_factory(policy_id), *spaces, model, seed)

    def setup(self) -> None:
        """Make what the algorithm needs besides its learners, which exist already."""

    def keep(self, name: str, part: P) -> P:
        """Save and restore a part of the algorithm with its checkpoints; returns the part."""
        self._parts.add(name, part)
        return part

    @property
    def learner(self) -> Learner:
        """The learner of the only policy; raises ValueError if policies have names (`learners`)."""
        if DEFAULT_POLICY_ID not in self.learners:
            raise ValueError(f"learners has a learner for each policy: {', '.join(self.learners)}")
        return self.learners[DEFAULT_POLICY_ID]

    @property
    def env_steps(self) -> int:
        """Env steps sampled so far; schedules depend on them."""
        return self.progress.env_steps

    def train(self) -> Result:
        """One iteration: `training_step` until the report's minimums are met, then evaluation.

        Raises:
            DivergedError: a loss, a gradient or a weight is NaN or infinite.
            RuntimeError: `stop` was called.
        """
        self._require_running()
        with seeded_generators(generators_seed(self.seed, Role.TRAIN, 0, self.progress.iteration)):
            return self._train()

    def _train(self) -> Result:
        progress, policies = self.progress, self.policies
        num_restarts = self.env_runner_group.num_restarts
        progress.begin_iteration()
        interval = self.config.evaluation.interval
        due = interval is not None and (progress.iteration + 1) % interval == 0
        if due and self.config.evaluation.parallel_to_training:
            self.evaluator.begin()
        while True:
            learners = policies.learner_results(self.training_step())
            policies.require_finite(learners, progress)
            if progress.minimums_met():
                break
        if (num_recreated := self.env_runner_group.num_restarts - num_restarts) > 0:
            self._call_back("on_env_runners_recreated", num_recreated)
        progress.iteration += 1
        policies.leave_out_unread(learners, self.columns_read)
        if due:
            with self.timers.phase("evaluate"):
                evaluation = self._evaluate(progress.evaluations, begun=True)
        else:
            evaluation = self._evaluation(None, progress.evaluations)
        result = progress.end_iteration(
            env_runners=self.env_runner_group,
            policies=[*policies],
            agents=policies.agents,
            weights_version=policies.weights_version,
            learners=learners,
            evaluation=evaluation,
        )
        iteration = progress.iteration
        self._call_back("on_train_result", result)
        require_counters(result, iteration)
        if made := len(self.config.callbacks):
            result["callbacks_set_aside"] = made - len(self._callbacks)
        return result

    @abstractmethod
    def training_step(self) -> dict[str, Any]:
        """Sample, learn, sync weights; returns the `learners` part of the result."""

    def sample(self) -> SampleBatch | MultiAgentBatch:
        """A train batch of exactly ``train_batch_size`` env steps, sampled synchronously."""
        with self.timers.phase("sample"):
            replies: list[SampleReply] = []
            end = self.progress.counted_steps + self.training.train_batch_size
            rounds = self._rounds
            for lengths, following in zip(rounds, [*rounds[1:], rounds[0]], strict=True):
                # Whole episodes may bring more steps than a round asks for.
                if self.progress.counted_steps < end:
                    replies += self.sample_round(lengths, following)
            if self._ahead is not None:
                self.progress.note_policy_lag(self.policies.weights_version, replies)
            return self.train_batch(replies).unwrapped()

    def sample_round(
        self, lengths: Sequence[int], following: Sequence[int] | None = None
    ) -> list[SampleReply]:
        """One fragment from each runner, sampled with the present weights.

        The steps of lost runners are sampled by the others, in another round.

        Args:
            lengths: steps of each sub-environment, by runner.
            following: lengths of the next round, which begins at once with `sample_async`.
        """
        weights, group, ahead = self.policies.acting_weights, self.env_runner_group, self._ahead
        # A request that carries merged statistics must wait for the merge of this round's.
        at_once = None if self.policies.connectors.sends else following
        replies = None if ahead is None else ahead.take(lengths, at_once, weights)
        if replies is None:
            replies = group.sample(self.next_request(), lengths, weights)
        self.count(replies)
        if len(replies) < len(lengths) and any(left := group.left_over(lengths, replies)):
            replies += self.sample_round(left)
        if ahead is not None and following is not None:
            ahead.begin(following, weights)
        return replies

    def next_request(self, length: int = 0) -> SampleRequest:
        """The next request for a fragment: its number, and how policies act in it."""
        policies, progress, connectors = self.policies, self.progress, self.policies.connectors
        request = SampleRequest(
            fragment=progress.next_fragment,
            length=length,
            weights_version=policies.weights_version,
            connector_state=connectors.get_state() if connectors.sends else None,
            exploration=self.explorations(),
            leave_out=dict(policies.reads.left_out),
            policies=dict(policies) if policies.several else None,
        )
        progress.next_fragment += 1
        return request

    def repeated_request(self, state: Mapping[str, Any], length: int = 0) -> SampleRequest:
        """The request for an earlier fragment again, without policies removed since.

        Args:
            state: from `SampleRequest.get_state`.
            length: steps of each sub-environment.
        """
        then, policies = state["policies"], None
        if then is not None:
            now = policy_numbers(self.policies)
            numbers = then if isinstance(then, Mapping) else now  # older checkpoints lack them
            left = {name for name in then if numbers.get(name) == now.get(name)}
            policies = {name: own for name, own in self.policies.items() if name in left}
        new = {"length": length, "policies": policies}
        return SampleRequest(**{**state, **new, "leave_out": dict(self.policies.reads.left_out)})

    def exploration(self, policy_id: str) -> Exploration | None:
        """A policy's exploration settings in env runners at this point of the run."""
        return None

    def explorations(self) -> dict[str, Exploration]:
        """Exploration settings of all policies that have some, by policy id."""
        found = {policy_id: self.exploration(policy_id) for policy_id in self.policies.settings}
        return {policy_id: own for policy_id, own in found.items() if own is not None}

    def count(self, replies: Sequence[SampleReply]) -> None:
        """Count the steps, episodes, timings and connector statistics of replies.

        Rows and statistics of policies that were removed since the request are dropped.
        """
        for reply in replies:
            for policy_id in self.removed_since(reply) if self.policies.several else ():
                reply.batches.policy_batches.pop(policy_id, None)
                reply.connector_deltas.pop(policy_id, None)
            for episode in reply.episodes if self._callbacks else ():
                self._call_back("on_episode_end", episode)  # which may add to its metrics
            self.progress.count(reply)
            self.policies.reads.watch(reply.batches.policy_batches)
        if self.policies.connectors.merges:
            self.policies.connectors.apply_deltas([reply.connector_deltas for reply in replies])

    def removed_since(self, reply: SampleReply) -> set[str]:
        """Policies that acted in a fragment and were removed; others may have their ids by now."""
        now = policy_numbers(self.policies)
        return {name for name, then in reply.policy_numbers.items() if now.get(name) != then}

    def train_batch(self, replies: Sequence[SampleReply]) -> MultiAgentBatch:
        """The batches of these replies, joined."""
        batch = replies[0].batches
        if len(replies) > 1:
            batch = concat_samples([reply.batches for reply in replies]).as_multi_agent()
        if self.config.env_runners.compress_observations:
            batch.decompress_if_needed()
        return batch

    def train_batches(
        self, batch: SampleBatch | MultiAgentBatch
    ) -> Iterator[tuple[str, SampleBatch]]:
        """The part of a batch that each policy learns from, as ``(policy id, batch)``."""
        return self.policies.train_batches(batch.as_multi_agent(), self.progress)

    def learner_rng(self, policy_id: str = DEFAULT_POLICY_ID) -> np.random.Generator:
        """The generator of this update, from the run's seed and the weights' version."""
        return learner_rng(self.seed, self.policies.weights_version, *_key_of(policy_id))

    def learner_result(
        self, trained_steps: int, statistics: Mapping[str, Any], policy_id: str = DEFAULT_POLICY_ID
    ) -> Result:
        """The `learners` part of the result for one policy."""
        return self.progress.learner_result(trained_steps, statistics, policy_id)

    def sync_weights(self) -> None:
        """Send the learners' weights with the next request, as a new version."""
        with self.timers.phase("sync"):
            self.policies.sync()

    def evaluate(self) -> Result:
        """Evaluate as section `evaluation` says; affects neither training nor later results."""
        self._require_running()
        return self._evaluate(copy.deepcopy(self.progress.evaluations))

    def _evaluate(self, statistics: EpisodeStatistics, *, begun: bool = False) -> Result:
        self._call_back("on_evaluate_start")
        result = self._evaluation(self.evaluator.evaluate(begun=begun), statistics)
        self._call_back("on_evaluate_end", result)
        return result

    def _evaluation(
        self, episodes: Sequence[EpisodeRecord] | None, statistics: EpisodeStatistics
    ) -> Result:
        return evaluation_result(episodes, [*self.policies], self.policies.agents, statistics)

    def _call_back(self, name: str, *arguments: Any) -> None:
        if self._callbacks:
            within, self._calls_back_in = self._calls_back_in, get_ident()
            try:
                call_back(self._callbacks, name, self, *arguments)
            finally:
                self._calls_back_in = within

    def resize_env_runners(self, num_env_runners: int) -> None:
        """Sample with this many remote env runners from now on; a train batch stays as large.

        Raises:
            ValueError: there are no remote runners, or this many cannot share the train batch.
        """
        config = resized(self.config, num_env_runners, self.validate)
        if self._ahead is not None:
            self._ahead.cancel()  # neither runners that end nor their successors would answer
        self.env_runner_group.resize(num_env_runners)
        self.config = config
        self._rounds = fragment_lengths(self.training.train_batch_size, config.env_runners)

    def acting_policy(
        self,
        policy_id: str | None = None,
        *,
        num_envs: int = 1,
        explore: bool | None = False,
        seed: int | None = None,
    ) -> ActingPolicy:
        """The present policy with its connectors, for environments that the caller steps.

        Args:
            policy_id: one of several policies; None: the only one.
            num_envs: environments that it acts in at once.
            explore: sample actions instead of taking the most likely ones; None: as env runners do.
            seed: of exploration; None: 0 for the first policy made so, 1 for the second, ...
        """
        return self.evaluator.acting_policy(policy_id, num_envs, explore=explore, seed=seed)

    def compute_single_action(
        self, observation: Any, policy_id: str | None = None, *, explore: bool | None = False
    ) -> Any:
        """The action for one observation; with a memory, as for an episode's first."""
        return self.acting_policy(policy_id, explore=explore).compute_single_action(observation)

    def add_policy(self, policy_id: str, *, like: str, train: bool = False) -> None:
        """Add a policy with the settings and present weights of another; new episodes may use it.

        Raises:
            ValueError: there is only one agent, no policy ``like``, or one of that id.
        """
        self.policies.add(policy_id, like, train)
        self._call_back("on_create_policy", policy_id)
        self.sync_weights()

    def remove_policy(self, policy_id: str) -> None:
        """Remove a policy that was added; running episodes with it are dropped."""
        self._forget(policy_id)
        self.sync_weights()

    def _forget(self, policy_id: str) -> None:
        self.policies.remove(policy_id)
        self._parts.forget(policy_id)

    def get_weights(self) -> dict[str, np.ndarray]:
        """Copies of all weights, as ``<policy id>/<parameter>``."""
        return self.policies.named_weights()

    def buffer_names(self) -> set[str]:
        """Names in `get_weights` that are buffers of networks, such as masks."""
        return self.policies.buffer_names()

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Load weights by name; the env runners get them with the next request.

        Raises:
            ValueError: names or shapes are not those of `get_weights`.
        """
        self.policies.load_named_weights(weights)
        self.policies.sync()

    def get_state(self) -> dict[str, Any]:
        """Everything that the next iteration depends on, except the weights."""
        runners = self.env_runner_group.get_states()
        return {
            "seed": self.seed,
            "progress": self.progress.get_state(),
            "policies": self.policies.get_state(),
            "env_runners": {str(index): state for index, state in runners.items()},
            "algorithm": self._parts.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`; the weights have been set already."""
        self.progress.set_state(state["progress"])
        self.policies.set_state(state["policies"])
        runners = {int(index): runner for index, runner in state["env_runners"].items()}
        self.env_runner_group.set_states(runners)
        parts = state["algorithm"]
        if self._ahead is not None and "ahead" not in parts:  # it ran without sample_async
            parts = {**parts, "ahead": {}}
            self.policies.reads.set_state({})  # columns left out then may be read now
        self._parts.set_state(parts)

    def after_restore(self) -> None:
        """Called once the weights and state of a checkpoint have been set."""
        self._call_back("on_checkpoint_loaded")
        self.timers.lap()

    def match_policies(self, state: Mapping[str, Any]) -> None:
        """Add and remove policies, here and in env runners, to match a state."""
        self.policies.match(state["policies"], self._forget)
        if self.policies.several:
            now = dict(self.policies)
            self.env_runner_group.foreach_env_runner(lambda runner: runner.set_policies(now))

    def save(self, path: str | Path) -> None:
        """Write a checkpoint as the folder ``path``, in place of an earlier one."""
        result = {"training_iteration": self.progress.iteration}
        write_checkpoint(Path(path), take_checkpoint(self, result))

    def restore(self, path: str | Path) -> None:
        """Restore the checkpoint in the folder ``path``."""
        restore_checkpoint(self, read_checkpoint(Path(path)))

    def stop(self) -> None:
        """Stop env runners and learners, close environments.

        Raises:
            RuntimeError: a callback calls this.
        """
        if self._calls_back_in == get_ident():
            message = "a callback cannot stop the algorithm; to end a run, add a number to each "
            message += "result in on_train_result and name it in the section stop"
            raise RuntimeError(message)
        self._stopped = True
        self._to_stop.close()

    def _require_running(self) -> None:
        if self._stopped:
            message = f"{type(self).__name__} was stopped; build another one, "
            message += f"or {type(self).__name__}.from_checkpoint continues from a checkpoint"
            raise RuntimeError(message)


def _key_of(policy_id: str) -> tuple[int, ...]:
    """A policy's part of the keys of its random numbers; empty for the default policy."""
    return () if policy_id == DEFAULT_POLICY_ID else (policy_key(policy_id),)
