"""The connectors of the training process: they see nothing and merge what the runners learn.

Owns the merged statistics of every policy's observations and rewards, for the next request, for
evaluation and for checkpoints. Knows nothing of environments, networks or Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import gymnasium as gym

from rlrun.config.policies import PolicySettings
from rlrun.policies.policy_mapping import Spaces
from rlrun.sampling.runner_connectors import RunnerConnectors
from rlrun.sampling.runner_messages import RunnerSpec

State = dict[str, Any]


class CentralConnectors(Protocol):
    """What an algorithm asks of them, for one policy or for several.

    Attributes:
        identity: whether there is nothing to learn, and nothing to send.
    """

    identity: bool

    def output_space(self, policy_id: str) -> gym.Space[Any]:
        """What the policy's network sees."""

    def action_space(self, policy_id: str) -> gym.Space[Any]:
        """What the policy acts in."""

    def apply_deltas(self, deltas: Sequence[Mapping[str, Any]]) -> None:
        """Merge what runners have learned since their last replies."""

    def get_state(self) -> State:
        """The merged statistics, as runners take them over."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""


def central_connectors(spaces: Mapping[str, Spaces], spec: RunnerSpec) -> CentralConnectors:
    """Those of all policies of an experiment, whose spaces these are."""
    policies = {} if spec.multi_agent is None else spec.multi_agent.policies
    by_policy = {
        policy_id: PolicyConnectors(env_spaces, spec, policies.get(policy_id))
        for policy_id, env_spaces in spaces.items()
    }
    if spec.multi_agent is None:
        return next(iter(by_policy.values()))
    return ConnectorsByPolicy(by_policy)


class PolicyConnectors(CentralConnectors):
    """Those of one policy.

    Args:
        spaces: the environment's.
        policy: what it is made from, if it is one of several.
    """

    def __init__(
        self, spaces: Spaces, spec: RunnerSpec, policy: PolicySettings | None = None
    ) -> None:
        self._spaces, self._spec, self._policy = spaces, spec, policy
        self._connectors = RunnerConnectors(spec, *spaces, policy=policy)
        self.identity = not self._connectors.stateful

    def output_space(self, policy_id: str) -> gym.Space[Any]:
        return self._connectors.observations.output_space

    def action_space(self, policy_id: str) -> gym.Space[Any]:
        return self._connectors.action_space

    def apply_deltas(self, deltas: Sequence[Mapping[str, Any]]) -> None:
        self._connectors.apply_deltas(deltas)

    def get_state(self) -> State:
        return self._connectors.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._connectors.set_state(state)

    def copy(self) -> PolicyConnectors:
        """Connectors that know the same."""
        duplicate = PolicyConnectors(self._spaces, self._spec, self._policy)
        duplicate.set_state(self.get_state())
        return duplicate


class ConnectorsByPolicy(CentralConnectors):
    """Those of several policies; states and deltas are by policy id."""

    def __init__(self, by_policy: dict[str, PolicyConnectors]) -> None:
        self.by_policy = by_policy
        self.identity = all(connectors.identity for connectors in by_policy.values())

    def output_space(self, policy_id: str) -> gym.Space[Any]:
        return self.by_policy[policy_id].output_space(policy_id)

    def action_space(self, policy_id: str) -> gym.Space[Any]:
        return self.by_policy[policy_id].action_space(policy_id)

    def add(self, policy_id: str, like: str) -> None:
        """Have those of a further policy, which know what those of another one do."""
        self.by_policy[policy_id] = self.by_policy[like].copy()

    def remove(self, policy_id: str) -> None:
        """Forget those of a policy."""
        del self.by_policy[policy_id]

    def apply_deltas(self, deltas: Sequence[Mapping[str, Any]]) -> None:
        for policy_id, connectors in self.by_policy.items():
            connectors.apply_deltas([delta[policy_id] for delta in deltas if policy_id in delta])

    def get_state(self) -> State:
        return {policy_id: one.get_state() for policy_id, one in self.by_policy.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        for policy_id, connectors in self.by_policy.items():
            connectors.set_state(state[policy_id])
