"""What each policy of an experiment is made from, with its own settings laid over the common ones.

Owns the way from the sections `model`, `training` and `multi_agent` to the settings of a policy.
Must not know: environments, and which agent plays which policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from rlrun.config.schema import ExperimentConfig, ModelConfig, PolicyConfig, Section, TrainingConfig

S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class PolicySettings:
    """One policy's."""

    model: ModelConfig
    training: TrainingConfig
    train: bool = True
    """Whether it learns."""
    use: str | None = None
    """Import path of a `Policy` written from scratch, in place of a network."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of that policy, as its ``config``."""
    like: str | None = None
    """Policy that it was made from, if it was added while the run went on."""
    spaces_of: str | None = None
    """Agent whose spaces it has, where that does not follow from who plays it."""


def policy_settings(experiment: ExperimentConfig, only: str) -> dict[str, PolicySettings]:
    """Policy id -> settings; ``only`` is the id of the one policy where none are named."""
    multi_agent = experiment.multi_agent
    if not multi_agent.policies:
        return {only: PolicySettings(experiment.model, experiment.training)}
    chosen = multi_agent.policies_to_train
    return {
        policy_id: settings_of(
            policy, experiment, train=policy.train and (chosen is None or policy_id in chosen)
        )
        for policy_id, policy in multi_agent.policies.items()
    }


def settings_of(
    policy: PolicyConfig, experiment: ExperimentConfig, *, train: bool
) -> PolicySettings:
    """One policy's settings, its own laid over the experiment's."""
    return PolicySettings(
        model=laid_over(experiment.model, policy.model),
        training=laid_over(experiment.training, policy.training),
        train=train,
        use=policy.use,
        kwargs=policy.kwargs,
        spaces_of=policy.spaces_of,
    )


def laid_over(common: S, own: Mapping[str, Any]) -> S:
    """The common section with some keys of one's own.

    Raises:
        pydantic.ValidationError: for what is wrong with them.
    """
    if not own:
        return common
    fields = {name: getattr(common, name) for name in type(common).model_fields}
    return type(common).model_validate({**fields, **own})
