"""The schema of the section `multi_agent`; a part of schema.py."""

from typing import Any, Literal

from pydantic import Field, model_validator

from rlrun.config.section import CodeSection, Section


class PolicyConfig(CodeSection):
    """One policy. With `use`, keys that are not named here are its arguments."""

    use: str | None = None
    """Import path of a `Policy` written from scratch; null is a network, as `model` has it."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the class named by `use`, as its `config`; in a file they stand beside it."""
    model: dict[str, Any] = Field(default_factory=dict)
    """What is different from the section `model` for this policy."""
    training: dict[str, Any] = Field(default_factory=dict)
    """What is different from the section `training` for this policy."""
    exploration: dict[str, Any] = Field(default_factory=dict)
    """What is different from the section `exploration` for this policy; of DQN."""
    train: bool = True
    """Whether it learns; false acts with the weights that it starts with."""
    spaces_of: str | None = None
    """Agent whose spaces it has; needed only where that does not follow from `agents`."""

    @model_validator(mode="before")
    @classmethod
    def _from_nothing(cls, data: Any) -> Any:
        return {} if data is None else data


class MultiAgentConfig(Section):
    """Several policies, for environments with several agents."""

    policies: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Policy id -> its own settings, or a list of ids; with none, the environment has one agent."""
    agents: dict[str, Any] | str | None = None
    """Agent or pattern -> policy id, the first that fits; or code: choose(agent, episode). null:
    agents play the policy of their name, or the only one."""
    policies_to_train: tuple[str, ...] | str | None = None
    """Ids of the policies that learn, or code: to_train(policy_id, batch), asked for every train
    batch; null: all whose `train` is true."""
    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    """What fragments and train batches are measured in; "agent_steps" may bring a few more."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, data: Any) -> Any:
        ids = data.get("policies") if isinstance(data, dict) else None
        if isinstance(ids, list | tuple) and all(isinstance(policy_id, str) for policy_id in ids):
            return {**data, "policies": {policy_id: {} for policy_id in ids}}
        return data
