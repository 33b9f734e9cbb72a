"""From an experiment to the env runners that sample for it, for training and for evaluation.

Owns what runners are built from, the spaces that policies have because of the environment, and the
runner of evaluation episodes, which is in this process. Nothing that training depends on is changed
by an evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlrun.actors.env_runner_group import EnvRunnerGroup
from rlrun.algorithms.callbacks import Callbacks, postprocessors
from rlrun.algorithms.policies import Policies
from rlrun.config.policies import PolicySettings
from rlrun.config.registry import import_object
from rlrun.config.schema import ExperimentConfig
from rlrun.data.sample_batch import DEFAULT_POLICY_ID
from rlrun.data.seeding import Role, evaluation_seed
from rlrun.envs.multi_agent_env import make_multi_agent_env
from rlrun.policies.policy_mapping import AgentMapping, Spaces, policy_spaces
from rlrun.sampling.acting_policy import ActingPolicy
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.episodes import EpisodeRecord
from rlrun.sampling.evaluation import run_episodes
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.runner_messages import (
    Exploration,
    MultiAgentSpec,
    PolicyFactory,
    RunnerSpec,
    tell_exploration,
)


def runner_spec(
    config: ExperimentConfig,
    seed: int,
    policies: Mapping[str, PolicySettings],
    factories: Mapping[str, PolicyFactory],
    callbacks: Sequence[Callbacks],
) -> RunnerSpec:
    """What all runners of an experiment are built from.

    Args:
        policies, factories: settings of each policy, and what makes it, by id.
    """
    multi_agent = None
    if config.multi_agent.policies:
        by_agent = config.multi_agent.count_steps_by == "agent_steps"
        multi_agent = MultiAgentSpec(policies, config.multi_agent.agents, by_agent, factories)
    return RunnerSpec(
        env=config.env,
        settings=config.env_runners,
        connectors=config.connectors,
        model=config.model,
        seed=seed,
        gamma=config.training.gamma,
        restart_failed_sub_environments=config.fault_tolerance.restart_failed_sub_environments,
        postprocessors=postprocessors(config.callbacks, callbacks),
        policy_factory=next(iter(factories.values())),
        multi_agent=multi_agent,
    )


def start_env_runners(
    config: ExperimentConfig, spec: RunnerSpec, address: str | None
) -> EnvRunnerGroup:
    """The group; remote runners go on building themselves while the learners are made."""
    settings = config.env_runners
    if settings.num_env_runners or config.learners.num_learners:
        from rlrun.actors.ray_runtime import start_ray

        start_ray(settings, address, config.learners)
    return EnvRunnerGroup(
        spec,
        num_env_runners=settings.num_env_runners,
        fault_tolerance=config.fault_tolerance,
        runner_class=runner_class(spec),
        wait=False,
    )


def runner_class(spec: RunnerSpec) -> Any:
    """The class of training runners."""
    if spec.settings.env_runner_cls:
        return import_object(spec.settings.env_runner_cls)
    return EnvRunner


def find_spaces(spec: RunnerSpec, group: EnvRunnerGroup) -> tuple[dict[str, Spaces], list[str]]:
    """From the local runner or an environment made for this: spaces of each policy, and agents.

    Raises:
        MappingError: agents and policies do not fit.
    """
    local = group.local_env_runner
    if spec.multi_agent is not None:
        env = make_multi_agent_env(spec.env) if local is None else local.envs.envs[0]
        mapping = AgentMapping(spec.multi_agent.agents)
        try:
            spaces = policy_spaces(env, mapping, spec.multi_agent.policies)
            return spaces, [str(agent) for agent in env.possible_agents]
        finally:
            if local is None:
                env.close()
    return {DEFAULT_POLICY_ID: group.spaces()}, []


class Evaluator:
    """Evaluates the policies as they are now, with a runner in this process.

    Args:
        spec: what the training runners are built from.
        explorations: present exploration settings of each policy in env runners.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        spec: RunnerSpec,
        policies: Policies,
        explorations: Callable[[], Mapping[str, Exploration]],
    ) -> None:
        self._settings, self._spec = config.evaluation, spec
        self._num_env_runners = config.env_runners.num_env_runners
        self._policies, self._explorations = policies, explorations
        self._runner: EnvRunner | None = None

    def evaluate(self) -> list[EpisodeRecord]:
        """Act for `evaluation.episodes` fresh episodes."""
        return run_episodes(
            self.runner(),
            num_episodes=self._settings.episodes,
            seed=self.seed(),
            explore=self._settings.explore,
        )

    def seed(self) -> int:
        """The seed of evaluation episodes: the experiment's own, or one derived from its seed."""
        seed = self._settings.seed
        return evaluation_seed(self._spec.seed) if seed is None else seed

    def runner(self, render_mode: str | None = None) -> EnvRunner:
        """The runner, with present policies, weights, connector statistics and exploration."""
        policies = self._policies
        if self._runner is None or render_mode is not None:
            self._runner = self._make_runner(render_mode)
        self._runner.set_policies(policies.settings)
        self._runner.load(
            policies.acting_weights, policies.weights_version, policies.connectors.get_state()
        )
        # Where runners differ, the last one explores least.
        tell_exploration(self._runner.policies, self._explorations(), self._num_env_runners)
        return self._runner

    def acting_policy(
        self, policy_id: str, num_envs: int, *, explore: bool, seed: int
    ) -> ActingPolicy:
        """See `Algorithm.acting_policy`."""
        policies = self._policies
        connectors = RunnerConnectors(
            self._spec,
            *policies.spaces[policy_id],
            num_slots=num_envs,
            key=(Role.EVALUATION, 0),
            policy=policies[policy_id],
        )
        connectors.set_state(policies.connectors.get_state()[policy_id])
        policy = connectors.policy
        policy.set_weights(policies.acting_weights[policy_id])
        tell_exploration({policy_id: policy}, self._explorations(), self._num_env_runners)
        return ActingPolicy(connectors, self._spec.settings, num_envs, explore=explore, seed=seed)

    def _make_runner(self, render_mode: str | None) -> EnvRunner:
        settings, evaluation = self._spec.settings, self._settings
        vectorize = settings.gym_env_vectorize_mode
        changes = {
            "num_envs_per_env_runner": min(evaluation.num_envs, evaluation.episodes),
            # The environment's own vectorisation cannot seed single episodes.
            "gym_env_vectorize_mode": "auto" if vectorize == "vector_entry_point" else vectorize,
        }
        spec = replace(self._spec, settings=settings.model_copy(update=changes))
        return EnvRunner(spec, role=Role.EVALUATION, render_mode=render_mode)

    def forget_weights(self) -> None:
        """Load the weights at the next call even if their version seems known."""
        if self._runner is not None:
            self._runner.weights_version = -1

    def stop(self) -> None:
        """Close the environments; the next call makes others."""
        if self._runner is not None:
            self._runner.stop()
            self._runner = None
