"""Algorithm: env runners, a learner and the loop that joins them.

An algorithm writes `setup` (its learner and what else it keeps) and `training_step`; everything
else here is shared: building runners, counting, evaluation, the result, state. It knows nothing of
files, consoles or stop criteria, which belong to the experiment.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch

from rlrun.algorithms.callbacks import make_callbacks
from rlrun.algorithms.result import (
    SCHEMA_VERSION,
    EpisodeStatistics,
    PhaseTimers,
    Result,
    SamplerTimes,
    evaluation_result,
)
from rlrun.config.batch_arithmetic import fragment_lengths
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.registry import import_object
from rlrun.config.schema import ExperimentConfig, TrainingConfig
from rlrun.connectors.observations import ObservationPipeline
from rlrun.data.multi_agent_batch import DEFAULT_POLICY_ID
from rlrun.data.sample_batch import SampleBatch, concat_samples
from rlrun.learning.learner import Learner
from rlrun.policies.numpy_policy import build_policy
from rlrun.policies.rl_module import ModuleFactory, RLModule, build_module
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.env_runner_group import EnvRunnerGroup
from rlrun.sampling.evaluation import play_episodes
from rlrun.sampling.runner_messages import (
    PolicyFactory,
    RunnerSpec,
    SampleReply,
    SampleRequest,
    reward_pipeline,
)
from rlrun.sampling.seeding import Role, evaluation_seed, learner_rng, weights_seed
from rlrun.sampling.vector_env import make_vector_env


class Algorithm(ABC):
    """Base of all algorithms.

    Args:
        config: a checked experiment, or the builder of one.
        address: of a Ray cluster to join; None starts Ray here if there are remote env runners.

    Attributes:
        learner: made by `setup`.
        iteration, env_steps, agent_steps: what has been done so far.
        weights_version: counts updates of the weights that env runners act with.
        timers: where the time goes; the experiment counts its own phases here, too.
    """

    Training: ClassVar[type[TrainingConfig]] = TrainingConfig
    Config: ClassVar[type[AlgorithmConfig]] = AlgorithmConfig
    optional_sections: ClassVar[frozenset[str]] = frozenset()
    """Which of the sections `exploration` and `replay` this algorithm uses."""

    learner: Learner

    def __init__(
        self, config: ExperimentConfig | AlgorithmConfig, *, address: str | None = None
    ) -> None:
        if isinstance(config, AlgorithmConfig):
            config = config.experiment()
        if config.seed is None:
            config = config.model_copy(update={"seed": secrets.randbits(31)})
        assert config.seed is not None
        self.config, self.seed = config, config.seed
        self.iteration = self.env_steps = self.agent_steps = self.weights_version = 0
        self.time_s = 0.0
        self.timers = PhaseTimers()
        self._callbacks = make_callbacks(config.callbacks)
        self._fragment_lengths = fragment_lengths(
            config.training.train_batch_size, config.env_runners
        )
        self._trained_steps = 0
        self._next_fragment = 0
        self._episodes = EpisodeStatistics(config.report.smoothing_episodes)
        self._runner_spec = RunnerSpec(
            env=config.env,
            settings=config.env_runners,
            connectors=config.connectors,
            model=config.model,
            seed=self.seed,
            gamma=config.training.gamma,
            restart_failed_sub_environments=config.fault_tolerance.restart_failed_sub_environments,
            policy_factory=self.policy_factory(),
        )
        self.env_runner_group = self._start_env_runners(address)
        self.observation_space, self.action_space = self._spaces()
        # The central connectors see nothing themselves; they merge what the runners have learned.
        self._observations = ObservationPipeline(self.observation_space, config.env_runners)
        self._rewards = reward_pipeline(self._runner_spec, num_lanes=0)
        self._evaluation_runner: EnvRunner | None = None
        self._sampler_times = SamplerTimes(config.env_runners.sampler_perf_stats_ema_coef)
        self._longest_running_episode = 0
        self._faulty_episodes = 0
        self.setup()
        self._weights = self.learner.get_weights()
        self.env_runner_group.wait_until_built()
        self._call_back("on_algorithm_init")
        self.timers.restart()

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """What is wrong with a config of this algorithm, as ``(key, message)``."""
        return iter(())

    def _start_env_runners(self, address: str | None) -> EnvRunnerGroup:
        """The group; remote runners go on building themselves while the learner is made."""
        settings = self.config.env_runners
        if settings.num_env_runners:
            from rlrun.sampling.ray_runtime import start_ray

            start_ray(settings, address)
        return EnvRunnerGroup(
            self._runner_spec,
            num_env_runners=settings.num_env_runners,
            fault_tolerance=self.config.fault_tolerance,
            runner_class=import_object(settings.env_runner_cls)
            if settings.env_runner_cls
            else None,
            wait=False,
        )

    def _spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Observation and action space, from the local runner or an environment made for this."""
        local = self.env_runner_group.local_env_runner
        if local is not None:
            return local.envs.single_observation_space, local.action_space
        envs = make_vector_env(self.config.env, 1, self.config.env_runners)
        try:
            return envs.single_observation_space, envs.single_action_space
        finally:
            envs.close()

    @abstractmethod
    def setup(self) -> None:
        """Make `learner`, and whatever else the algorithm keeps."""

    @abstractmethod
    def training_step(self) -> dict[str, Any]:
        """Sample, learn, sync; returns the `learners` part of the result."""

    def module_factory(self) -> ModuleFactory:
        """What makes the learner's network; overridden together with `policy_factory`."""
        return build_module

    def policy_factory(self) -> PolicyFactory:
        """What makes the policy that env runners act with, before `setup`; must be picklable."""
        return build_policy

    def exploration(self) -> dict[str, float] | None:
        """What the policies of env runners are told about exploring at this point of the run."""
        return None

    def _call_back(self, name: str, *arguments: Any) -> None:
        """Call this method of each of the user's callbacks."""
        for callbacks in self._callbacks:
            getattr(callbacks, name)(self, *arguments)

    def build_module(self) -> RLModule:
        """The module of the `model` section, its initial weights drawn from the run's seed."""
        torch.manual_seed(weights_seed(self.seed))
        space = self._observations.output_space
        # Orthogonal weights come out of LAPACK, whose last digits depend on the number of threads.
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self.module_factory()(space, self.action_space, self.config.model)
        finally:
            torch.set_num_threads(num_threads)

    # -- one iteration -------------------------------------------------------------------------

    def train(self) -> Result:
        """One iteration: `training_step` until the report's minimums are met, and evaluation."""
        steps_before = self.env_steps
        trained_before = self._trained_steps
        time_before = self.time_s
        while True:
            learners = self.training_step()
            elapsed = self.timers.elapsed()
            if self._minimums_met(
                elapsed, self.env_steps - steps_before, self._trained_steps - trained_before
            ):
                break
        self.iteration += 1
        evaluation = self._evaluate_if_due()
        timers, wall_s = self.timers.lap()
        self.time_s = time_before + wall_s
        new_steps = self.env_steps - steps_before
        result = {
            "schema_version": SCHEMA_VERSION,
            "training_iteration": self.iteration,
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "env_steps_this_iter": new_steps,
            **self._episodes.end_iteration(),
            "env_steps_per_s": new_steps / wall_s,
            "time_s": self.time_s,
            "weights_version": self.weights_version,
            "env_runners": self._env_runner_result(),
            "learners": learners,
            "evaluation": evaluation,
            "timers": timers,
        }
        self._call_back("on_train_result", result)
        return result

    def _minimums_met(self, elapsed_s: float, sampled: int, trained: int) -> bool:
        report = self.config.report
        return (
            elapsed_s >= (report.min_time_s_per_iteration or 0)
            and sampled >= (report.min_sample_timesteps_per_iteration or 0)
            and trained >= (report.min_train_timesteps_per_iteration or 0)
        )

    def _env_runner_result(self) -> Result:
        group = self.env_runner_group
        return {
            "healthy": group.num_healthy,
            "restarts": group.num_restarts,
            "in_flight": group.num_in_flight,
            "longest_running_episode": self._longest_running_episode,
            "faulty_episodes": self._faulty_episodes,
            **self._sampler_times.result(),
        }

    # -- sampling ------------------------------------------------------------------------------

    def sample(self, rounds: Sequence[Sequence[int]] | None = None) -> SampleBatch:
        """A train batch of exactly ``train_batch_size`` env steps, sampled synchronously.

        Args:
            rounds: steps of each lane, by round and runner, for other numbers of env steps.
        """
        batches: list[SampleBatch] = []
        with self.timers.phase("sample"):
            for lengths in self._fragment_lengths if rounds is None else rounds:
                replies = self.sample_round(lengths)
                batches.extend(reply.batch for reply in replies)
            batch = batches[0] if len(batches) == 1 else concat_samples(batches)
            assert isinstance(batch, SampleBatch)
            if self.config.env_runners.compress_observations:
                batch.decompress_if_needed()
            self._call_back("on_sample_end", batch)
        return batch

    def sample_round(self, lengths: Sequence[int]) -> list[SampleReply]:
        """One fragment from each healthy runner, acted with the present weights."""
        request = SampleRequest(
            fragment=self._next_fragment,
            length=0,
            weights_version=self.weights_version,
            connector_state=self._connector_state(),
            exploration=self.exploration(),
        )
        self._next_fragment += 1
        replies = self.env_runner_group.sample(request, lengths, self._weights)
        for reply in replies:
            self.count_reply(reply)
        if self.config.env_runners.use_worker_filter_stats:
            deltas = [reply.connector_deltas for reply in replies]
            if not self._observations.identity:
                self._observations.apply_deltas([delta["observations"] for delta in deltas])
            if not self._rewards.identity:
                self._rewards.apply_deltas([delta["rewards"] for delta in deltas])
        self._faulty_episodes = sum(reply.faulty_episodes for reply in replies)
        self._longest_running_episode = max(
            (reply.longest_running_episode for reply in replies), default=0
        )
        return replies

    def count_reply(self, reply: SampleReply) -> None:
        """Take a reply's steps, episodes and timings into the books."""
        self.env_steps += reply.env_steps
        self.agent_steps += reply.env_steps
        self._episodes.add(reply.episodes)
        if self._callbacks:
            for episode in reply.episodes:
                self._call_back("on_episode_end", episode)
        self._sampler_times.add(reply)

    def _connector_state(self) -> dict[str, Any] | None:
        unchanged = self._observations.identity and self._rewards.identity
        if unchanged or not self.config.env_runners.update_worker_filter_stats:
            return None
        if self._next_fragment == 0:
            return None  # nothing has been merged yet
        return {
            "observations": self._observations.get_state(),
            "rewards": self._rewards.get_state(),
        }

    def sync_weights(self) -> None:
        """Let the next request carry the learner's weights, as one buffer under a new version."""
        with self.timers.phase("sync"):
            self._weights = self.learner.get_weights()
            self.weights_version += 1

    # -- learning ------------------------------------------------------------------------------

    def learner_rng(self) -> np.random.Generator:
        """Random numbers of this update, from the run's seed and the weights' version."""
        return learner_rng(self.seed, self.weights_version)

    def learner_result(self, trained_steps: int, statistics: Mapping[str, Any]) -> Result:
        """The `learners` part of the result for the one policy there is."""
        self._trained_steps += trained_steps
        return {
            DEFAULT_POLICY_ID: {
                "num_agent_steps_trained": trained_steps,
                "learner_stats": dict(statistics),
            }
        }

    # -- evaluation ----------------------------------------------------------------------------

    def _evaluate_if_due(self) -> Result:
        interval = self.config.evaluation.interval
        if interval is None or self.iteration % interval:
            return evaluation_result(None)
        with self.timers.phase("evaluate"):
            return self.evaluate()

    def evaluate(self) -> Result:
        """Play `evaluation.episodes` fresh episodes; changes nothing that training depends on."""
        settings = self.config.evaluation
        self._call_back("on_evaluate_start")
        episodes = play_episodes(
            self.evaluation_runner(),
            num_episodes=settings.episodes,
            seed=self.evaluation_seed(),
            explore=settings.explore,
        )
        result = evaluation_result(episodes)
        self._call_back("on_evaluate_end", result)
        return result

    def evaluation_seed(self) -> int:
        """The seed of evaluation episodes: the experiment's own, or one derived from its seed."""
        seed = self.config.evaluation.seed
        return evaluation_seed(self.seed) if seed is None else seed

    def evaluation_runner(self, render_mode: str | None = None) -> EnvRunner:
        """A runner in this process that acts with the present weights and frozen connectors."""
        if self._evaluation_runner is None or render_mode is not None:
            settings, evaluation = self.config.env_runners, self.config.evaluation
            lanes = min(evaluation.num_envs, evaluation.episodes)
            vectorize = settings.gym_env_vectorize_mode
            changes = {
                "num_envs_per_env_runner": lanes,
                # The environment's own vectorisation cannot seed single episodes.
                "gym_env_vectorize_mode": "auto"
                if vectorize == "vector_entry_point"
                else vectorize,
            }
            spec = RunnerSpec(
                **{
                    **vars(self._runner_spec),
                    "settings": settings.model_copy(update=changes),
                }
            )
            self._evaluation_runner = EnvRunner(spec, role=Role.EVALUATION, render_mode=render_mode)
        self._evaluation_runner.load(self._weights, self.weights_version, self._central_state())
        exploration = self.exploration()
        if exploration is not None:
            self._evaluation_runner.policy.set_exploration(exploration)
        return self._evaluation_runner

    def _central_state(self) -> dict[str, Any]:
        return {
            "observations": self._observations.get_state(),
            "rewards": self._rewards.get_state(),
        }

    # -- state ---------------------------------------------------------------------------------

    def get_weights(self) -> dict[str, np.ndarray]:
        """Copies of all weights by parameter name."""
        return self.learner.named_weights()

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Take over weights by name; the env runners get them with the next request."""
        self.learner.load_named_weights(weights)
        self._weights = self.learner.get_weights()

    def get_state(self) -> dict[str, Any]:
        """Everything besides the weights that the next iteration depends on."""
        return {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "agent_steps": self.agent_steps,
            "trained_steps": self._trained_steps,
            "time_s": self.time_s,
            "weights_version": self.weights_version,
            "next_fragment": self._next_fragment,
            "seed": self.seed,
            "episodes": self._episodes.get_state(),
            "connectors": self._central_state(),
            "learner": self.learner.get_state(),
            "env_runners": {
                str(index): state for index, state in self.env_runner_group.get_states().items()
            },
            "algorithm": self.get_extra_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `get_state` was called; the weights come separately."""
        self.iteration, self.env_steps = int(state["iteration"]), int(state["env_steps"])
        self.agent_steps, self._trained_steps = (
            int(state["agent_steps"]),
            int(state["trained_steps"]),
        )
        self.time_s = float(state["time_s"])
        self.weights_version = int(state["weights_version"])
        self._next_fragment = int(state["next_fragment"])
        self._episodes.set_state(state["episodes"])
        self._observations.set_state(state["connectors"]["observations"])
        self._rewards.set_state(state["connectors"]["rewards"])
        self.learner.set_state(state["learner"])
        self.env_runner_group.set_states(
            {int(index): runner for index, runner in state["env_runners"].items()}
        )
        self.set_extra_state(state["algorithm"])
        self._call_back("on_checkpoint_loaded")
        self.timers.restart()

    def get_extra_state(self) -> dict[str, Any]:
        """What this algorithm keeps besides; overridden together with `set_extra_state`."""
        return {}

    def set_extra_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - an optional hook
        """Take over what `get_extra_state` returned."""

    def save(self, path: str | Path) -> None:
        """Write a checkpoint into the folder ``path``."""
        # The experiment stands above this room, so it is reached by name.
        import_object("rlrun.experiment.saving:save_algorithm")(self, Path(path), {})

    def restore(self, path: str | Path) -> None:
        """Go on from a checkpoint folder."""
        import_object("rlrun.experiment.saving:restore_algorithm")(self, Path(path))

    def stop(self) -> None:
        """Stop env runners and close environments."""
        self.env_runner_group.stop()
        if self._evaluation_runner is not None:
            self._evaluation_runner.stop()
            self._evaluation_runner = None
