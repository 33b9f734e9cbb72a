"""What is wrong with the section `multi_agent`, before any environment is built.

Owns: names that nobody has, overrides that the sections they belong to refuse, and what does not go
together with several agents. Must not know: agents and spaces; runners check those.
"""

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from rlrun.config.checks import OPTIONAL_SECTIONS
from rlrun.config.policies import laid_over
from rlrun.config.problems import Path
from rlrun.config.registry import algorithm_class, suggestion
from rlrun.config.schema import ExperimentConfig, MultiAgentConfig, Section
from rlrun.config.validate import Finding, unknown_key

_OF_ALL = ("train_batch_size",)  # settings of `training` that no policy has for itself

_STEPPED_IN_TURN = ("auto", "sync")  # of `env_runners.gym_env_vectorize_mode`


def check_multi_agent(experiment: ExperimentConfig) -> Iterator[Finding]:
    """Everything that is wrong with `multi_agent`."""
    multi_agent = experiment.multi_agent
    if not multi_agent.policies:
        # With one agent either unit counts the same.
        if multi_agent != MultiAgentConfig(count_steps_by=multi_agent.count_steps_by):
            message = "no policies; `policies: [a, b]` would name two"
            yield Finding(("multi_agent", "policies"), message)
        return
    if not getattr(algorithm_class(experiment.algorithm), "trains_several_policies", False):
        message = f"{experiment.algorithm} learns one policy; PPO, for one, learns several"
        yield Finding(("multi_agent",), message)
    if experiment.env_runners.gym_env_vectorize_mode not in _STEPPED_IN_TURN:
        message = (
            "with several agents a runner steps its environments one after the other; leave this "
            "out, and take more env_runners.num_env_runners for slow environments"
        )
        yield Finding(("env_runners", "gym_env_vectorize_mode"), message)
    yield from _check_names(multi_agent)
    for policy_id in multi_agent.policies:
        yield from _check_policy(experiment, policy_id)


def _check_names(multi_agent: MultiAgentConfig) -> Iterator[Finding]:
    policies = multi_agent.policies
    for policy_id in policies:
        if not policy_id or "/" in policy_id:
            message = f"a policy id is not empty and has no slash, got {policy_id!r}"
            yield Finding(("multi_agent", "policies", policy_id), message)
    named = multi_agent.policies_to_train
    for i, policy_id in enumerate(() if isinstance(named, str) else named or ()):
        if policy_id not in policies:
            yield Finding(("multi_agent", "policies_to_train", i), _no_such(policy_id, policies))
    table = multi_agent.agents
    if isinstance(table, dict) and "use" not in table:
        for agent, policy_id in table.items():
            if policy_id not in policies:
                yield Finding(("multi_agent", "agents", agent), _no_such(policy_id, policies))


def _no_such(policy_id: Any, policies: dict[str, Any]) -> str:
    known = ", ".join(policies)
    return (
        f"there is no policy {policy_id!r}, there is {known}{suggestion(str(policy_id), policies)}"
    )


def _check_policy(experiment: ExperimentConfig, policy_id: str) -> Iterator[Finding]:
    policy = experiment.multi_agent.policies[policy_id]
    path: Path = ("multi_agent", "policies", policy_id)
    for name in _OF_ALL:
        if name in policy.training:
            message = "one for all policies; it belongs to training"
            yield Finding((*path, "training", name), message)
    sections: dict[str, tuple[Section, dict[str, Any]]] = {
        "model": (experiment.model, policy.model),
        "training": (experiment.training, policy.training),
        "exploration": (experiment.exploration, policy.exploration),
    }
    for name, (common, own) in sections.items():
        if own and policy.use is not None:
            message = f"{policy.use} is no network of rlrun; its arguments stand beside `use`"
            yield Finding((*path, name), message)
            continue
        used = getattr(algorithm_class(experiment.algorithm), "optional_sections", ())
        if own and name in OPTIONAL_SECTIONS and name not in used:
            message = f"{experiment.algorithm} does not use this section; leave it out"
            yield Finding((*path, name), message)
        try:
            laid_over(common, own)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                yield _finding(path, name, common, item)


def _finding(path: Path, name: str, common: Section, item: Any) -> Finding:
    where = tuple(part for part in item["loc"] if isinstance(part, str | int))
    if item["type"] == "extra_forbidden":
        training = type(common) if name == "training" else None
        message = unknown_key((name, str(where[0])), training)  # type: ignore[arg-type]
    else:
        message = str(item["msg"]).lower()
    return Finding((*path, name, *where[:1]), message)
