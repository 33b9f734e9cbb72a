"""From an experiment to the env runners that sample for it, for training and for evaluation.

Owns what runners are built from, and the spaces that policies have because of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rlrun.actors.env_runner_group import EnvRunnerGroup
from rlrun.algorithms.callbacks import Callbacks, postprocessors
from rlrun.config.policies import PolicySettings
from rlrun.config.registry import import_object
from rlrun.config.schema import EvaluationConfig, ExperimentConfig
from rlrun.data.multi_agent_batch import DEFAULT_POLICY_ID
from rlrun.envs.multi_agent_env import make_multi_agent_env
from rlrun.policies.policy_mapping import AgentMapping, Spaces, policy_spaces
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.multi_agent_env_runner import MultiAgentEnvRunner
from rlrun.sampling.runner_messages import MultiAgentSpec, PolicyFactory, RunnerSpec
from rlrun.sampling.seeding import Role


def runner_spec(
    config: ExperimentConfig,
    seed: int,
    factories: Mapping[str, PolicyFactory],
    policies: dict[str, PolicySettings],
    callbacks: Sequence[Callbacks],
) -> RunnerSpec:
    """What all runners of an experiment are built from.

    Args:
        factories: what makes each policy, by id.
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
    return EnvRunner if spec.multi_agent is None else MultiAgentEnvRunner


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


def make_evaluation_runner(
    spec: RunnerSpec, evaluation: EvaluationConfig, render_mode: str | None
) -> Any:
    """The runner that plays evaluation episodes in this process."""
    vectorize = spec.settings.gym_env_vectorize_mode
    changes = {
        "num_envs_per_env_runner": min(evaluation.num_envs, evaluation.episodes),
        # The environment's own vectorisation cannot seed single episodes.
        "gym_env_vectorize_mode": "auto" if vectorize == "vector_entry_point" else vectorize,
    }
    spec = replace(spec, settings=spec.settings.model_copy(update=changes))
    kind = EnvRunner if spec.multi_agent is None else MultiAgentEnvRunner
    return kind(spec, role=Role.EVALUATION, render_mode=render_mode)
