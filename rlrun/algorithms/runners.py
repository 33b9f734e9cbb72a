"""From an experiment to the env runners that sample for it.

Owns what runners are built from, and the spaces that policies have because of the environment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium as gym

from rlrun.actors.env_runner_group import EnvRunnerGroup, env_spaces
from rlrun.algorithms.callbacks import Callbacks, runner_callbacks
from rlrun.algorithms.result import IS_SUCCESS
from rlrun.config.policies import PolicySettings, evaluation_runners, num_networks
from rlrun.config.problems import misfit
from rlrun.config.registry import import_object
from rlrun.config.schema import EnvRunnersConfig, ExperimentConfig
from rlrun.data.sample_batch import DEFAULT_POLICY_ID
from rlrun.envs.multi_agent_env import make_multi_agent_env
from rlrun.envs.watchdog import close_in_time
from rlrun.envs.wrappers import find_wrappers
from rlrun.policies.policy_mapping import Spaces, policy_spaces
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import MultiAgentSpec, PolicyFactory, RunnerSpec, custom_policy

_log = logging.getLogger(__name__)

FRACTION = (
    "there are more env runners than CPUs: each reserves %g "
    "(env_runners.num_cpus_per_env_runner: auto)"
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
    multi_agent, faults = None, config.fault_tolerance
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
        restart_failed_sub_environments=faults.restart_failed_sub_environments,
        max_sub_environment_failures_per_1000_steps=(
            faults.max_sub_environment_failures_per_1000_steps
        ),
        env_timeout_s=faults.env_timeout_s,
        max_replayed_env_steps=faults.max_replayed_env_steps,
        callbacks=runner_callbacks(config.callbacks, callbacks),
        info_keys=(*config.report.info_keys, IS_SUCCESS),
        policy_factory=(
            next(iter(factories.values()))
            if config.policy is None
            else partial(custom_policy, next(iter(policies.values())))
        ),
        multi_agent=multi_agent,
    )


def with_ray(config: ExperimentConfig, address: str | None) -> ExperimentConfig:
    """Start Ray if an experiment needs it; the experiment with the CPUs that runners reserve."""
    settings = config.env_runners
    evaluation = evaluation_runners(config)
    actors = settings.num_env_runners, config.learners.num_learners, evaluation.num_env_runners
    if not (any(actors) or settings.remote_worker_envs or evaluation.remote_worker_envs):
        return config
    from rlrun.actors.ray_runtime import reserving, start_ray

    limit_s = config.fault_tolerance.env_runner_start_timeout_s
    networks = num_networks(config)
    cpus = start_ray(settings, address, config.learners, evaluation, limit_s, networks)
    if cpus < 1.0:
        _log.warning(FRACTION, cpus)
    return config.model_copy(update={"env_runners": reserving(settings, cpus)})


def start_env_runners(config: ExperimentConfig, spec: RunnerSpec) -> EnvRunnerGroup:
    """The group; remote runners go on building themselves while the learners are made."""
    return EnvRunnerGroup(
        spec,
        num_env_runners=config.env_runners.num_env_runners,
        fault_tolerance=config.fault_tolerance,
        runner_class=runner_class(spec.settings),
        wait=False,
    )


def runner_class(settings: EnvRunnersConfig) -> Any:
    """The class of env runners, of training and of evaluation."""
    kind = settings.env_runner_cls
    return EnvRunner if kind is None else import_object(kind)


def resized(
    config: ExperimentConfig,
    num_env_runners: int,
    validate: Callable[[ExperimentConfig], Iterable[tuple[str, str]]],
) -> ExperimentConfig:
    """The experiment with this many env runners; raises ValueError for its first problem."""
    settings = config.env_runners.model_copy(update={"num_env_runners": num_env_runners})
    config = config.model_copy(update={"env_runners": settings})
    for key, message in validate(config):
        raise ValueError(f"{key}: {message}")
    return config


def find_spaces(
    spec: RunnerSpec, group: EnvRunnerGroup | None = None, *, key: str = "multi_agent.agents"
) -> tuple[dict[str, Spaces], list[str]]:
    """From the local runner or an environment made for this: spaces of each policy, and agents.

    Args:
        key: address of the setting that says which policies agents have.

    Raises:
        ConfigError: agents and policies do not fit.
    """
    local = None if group is None else group.local_env_runner
    if spec.multi_agent is not None:
        if local is None:
            wrappers = find_wrappers(spec.settings.env_wrappers)
            env = make_multi_agent_env(spec.env, wrappers=wrappers)
        else:
            env = local.envs.envs[0]
        try:
            policies = spec.multi_agent.policies
            spaces = policy_spaces(env, spec.multi_agent.mapping(), policies, key)
            return spaces, [str(agent) for agent in env.possible_agents]
        finally:
            if local is None:
                close_in_time(env.close)
    return {DEFAULT_POLICY_ID: env_spaces(spec) if group is None else group.spaces()}, []


def require_spaces(spec: RunnerSpec, expected: Mapping[str, Spaces], key: str) -> None:
    """Raise ConfigError if policies made for these spaces cannot act in the evaluation's.

    Args:
        key: address of what differs in evaluation.
    """
    require_form(find_spaces(spec, key=key)[0], expected, key, "in training")


def require_form(
    found: Mapping[str, Spaces], expected: Mapping[str, Spaces], key: str, there: str
) -> None:
    """Raise ConfigError if policies made for the expected spaces cannot act in those found.

    Args:
        found, expected: by policy.
        key: address of what has the spaces that were found.
        there: where the expected ones are from, in words.
    """
    for policy_id in (name for name in expected if name in found):
        of_policy = "" if policy_id == DEFAULT_POLICY_ID else f" of policy {policy_id}"
        for name, own, its in zip(
            ("observations", "actions"), expected[policy_id], found[policy_id], strict=True
        ):
            if not _have_one_form(own, its):
                message = f"its {name}{of_policy} are {its}, but {there} {own}"
                raise misfit(key, message)


def _have_one_form(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Whether a network for one space fits the other; bounds of boxes may differ."""
    if isinstance(one, gym.spaces.Box) and isinstance(other, gym.spaces.Box):
        return one.shape == other.shape
    if isinstance(one, gym.spaces.Dict) and isinstance(other, gym.spaces.Dict):
        return one.keys() == other.keys() and all(
            _have_one_form(space, other[name]) for name, space in one.items()
        )
    if isinstance(one, gym.spaces.Tuple) and isinstance(other, gym.spaces.Tuple):
        return len(one) == len(other) and all(map(_have_one_form, one, other))
    return one == other
