"""The settings of each policy and of evaluation: the common settings with their own overrides.

Owns: how the sections `model`, `training`, `exploration` and `multi_agent` determine the settings
of a policy, and `env`, `env_runners` and `evaluation` those of evaluation. Must not know:
environments, nor the policies of agents.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from rlrun.config.schema import (
    EnvRunnersConfig,
    EnvSpec,
    ExperimentConfig,
    ExplorationConfig,
    ModelConfig,
    MultiAgentConfig,
    PolicyConfig,
    Section,
    TrainingConfig,
)

S = TypeVar("S", bound=Section)

_PATIENCE_S = 1e6  # how long an evaluation may take, unless its settings say otherwise


@dataclass(frozen=True)
class PolicySettings:
    """The settings of one policy."""

    model: ModelConfig
    training: TrainingConfig
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    train: bool = True
    """Whether it learns."""
    use: str | None = None
    """Import path of a custom `Policy`, in place of a network."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of that policy, as its ``config``."""
    like: str | None = None
    """The policy that it was copied from, if it was added during the run."""
    number: int = 0
    """Counts added policies, from 1; tells a policy from a removed one of the same id."""
    spaces_of: str | None = None
    """Agent whose spaces it has, if they do not follow from `multi_agent.agents`."""


def evaluation_env(experiment: ExperimentConfig) -> EnvSpec:
    """The environment of evaluation; one of another name does not inherit arguments."""
    own = dict(experiment.evaluation.env)
    use = own.pop("use", experiment.env.use)
    common = experiment.env.kwargs if use == experiment.env.use else {}
    return EnvSpec(use=use, kwargs={**common, **own})


_OF_BATCHES = (
    *("rollout_fragment_length", "batch_mode", "sample_collector", "compress_observations"),
    *("use_worker_filter_stats", "update_worker_filter_stats", "sampler_perf_stats_ema_coef"),
)
UNREAD_IN_EVALUATION = {
    **dict.fromkeys(_OF_BATCHES, "evaluation runs whole episodes and collects no batches"),
    "soft_horizon": "in evaluation a horizon always ends the episode",
    "max_requests_in_flight_per_env_runner": "in evaluation it is always 1",
    **dict.fromkeys(
        ("observation_check_interval", "observations_out_of_bounds"),
        "evaluation does not compare observations with their bounds",
    ),
}
"""Settings of `env_runners` without an effect in evaluation, each with the reason."""


def evaluation_runners(experiment: ExperimentConfig) -> EnvRunnersConfig:
    """The settings of env runners that evaluate, in Ray actors or in this process."""
    evaluation, common = experiment.evaluation, experiment.env_runners
    num_envs, runners = evaluation.num_envs, max(evaluation.num_env_runners, 1)
    if evaluation.env_steps is None:
        num_envs = min(num_envs, math.ceil(evaluation.episodes / runners))
    mode = common.gym_env_vectorize_mode
    changes = {
        "num_env_runners": evaluation.num_env_runners,
        "num_envs_per_env_runner": num_envs,
        # An environment's own vectorisation cannot seed single episodes.
        "gym_env_vectorize_mode": "auto" if mode == "vector_entry_point" else mode,
        "sample_timeout_s": _PATIENCE_S,
        "create_env_on_local_worker": False,
        "remote_env_batch_wait_ms": None,  # which episodes it has does not depend on the machine
    }
    return EnvRunnersConfig.model_validate({**dict(common), **changes, **evaluation.env_runners})


def policy_settings(experiment: ExperimentConfig, only: str) -> dict[str, PolicySettings]:
    """Policy id -> settings; ``only`` is the id of the one policy if none are named."""
    multi_agent = experiment.multi_agent
    if not multi_agent.policies:
        own = experiment.policy
        policy = PolicyConfig() if own is None else PolicyConfig(use=own.use, kwargs=own.kwargs)
        return {only: settings_of(policy, experiment, train=True)}
    learn = policies_that_learn(multi_agent)
    return {
        policy_id: settings_of(policy, experiment, train=policy_id in learn)
        for policy_id, policy in multi_agent.policies.items()
    }


def policies_that_learn(multi_agent: MultiAgentConfig) -> list[str]:
    """Ids of the policies that learn; code, if there is some, is asked about each train batch."""
    chosen, policies = multi_agent.policies_to_train, multi_agent.policies
    named = policies if chosen is None or isinstance(chosen, str) else chosen
    return [name for name, policy in policies.items() if policy.train and name in named]


def num_networks(experiment: ExperimentConfig) -> int:
    """Number of policies that are networks and learn; each has its own learners."""
    policies = policy_settings(experiment, "").values()
    return sum(policy.use is None and policy.train for policy in policies)


def settings_of(
    policy: PolicyConfig, experiment: ExperimentConfig, *, train: bool
) -> PolicySettings:
    """One policy's settings: the experiment's with its own overrides."""
    return PolicySettings(
        model=_laid_over(experiment.model, policy.model),
        training=_laid_over(experiment.training, policy.training),
        exploration=_laid_over(experiment.exploration, policy.exploration),
        train=train,
        use=policy.use,
        kwargs=policy.kwargs,
        spaces_of=policy.spaces_of,
    )


def addressed_settings(experiment: ExperimentConfig) -> Iterator[tuple[str, PolicySettings]]:
    """All different settings of networks, each with the prefix of its addresses.

    First the experiment's, with ""; then those of policies that override some of them, with
    ``multi_agent.policies.<id>.``. Invalid ones are left out; they are reported elsewhere.
    """
    yield "", settings_of(PolicyConfig(), experiment, train=True)
    for policy_id, policy in experiment.multi_agent.policies.items():
        if policy.use is None and (policy.model or policy.training or policy.exploration):
            with contextlib.suppress(ValidationError):
                settings = settings_of(policy, experiment, train=policy.train)
                yield f"multi_agent.policies.{policy_id}.", settings


def with_one_policy(experiment: ExperimentConfig, policy: PolicyConfig) -> ExperimentConfig:
    """The experiment as it would be if all its policies had this one's settings."""
    own = settings_of(policy, experiment, train=policy.train)
    sections = {name: getattr(own, name) for name in ("model", "training", "exploration")}
    return experiment.model_copy(update={**sections, "multi_agent": MultiAgentConfig()})


def _laid_over(common: S, own: Mapping[str, Any]) -> S:
    """The common section with a policy's own values; ValidationError if one of these is invalid."""
    if not own:
        return common
    return type(common).model_validate({**dict(common), **own})
