"""CentralConnectors: the training process's connectors, which merge what the runners' have learned.

Owns one pipeline for each policy, and what is sent to the runners with a request. Must not know
policies' networks, nor how anything is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlrun.config.policies import PolicySettings
from rlrun.policies.policy_mapping import Spaces
from rlrun.sampling.runner_connectors import RunnerConnectors, reward_pipeline
from rlrun.sampling.runner_messages import RunnerSpec


class CentralConnectors(dict[str, RunnerConnectors]):
    """Policy id -> its connectors in the training process.

    Args:
        policies: settings of each policy.
        spaces: the environment's, by policy.

    Attributes:
        clip_rewards: as `connectors.clip_rewards`; never None.
        merges: whether statistics of the runners are merged.
        sends: whether the merged statistics go to runners with each request.
    """

    def __init__(
        self, spec: RunnerSpec, policies: Mapping[str, PolicySettings], spaces: Mapping[str, Spaces]
    ) -> None:
        self._spec, self._policies, self._spaces = spec, policies, spaces
        self.clip_rewards = reward_pipeline(spec).clip
        super().__init__({policy_id: self._made(policy_id) for policy_id in policies})
        stateful = any(connectors.stateful for connectors in self.values())
        self.merges = stateful and spec.settings.use_worker_filter_stats
        self.sends = stateful and spec.settings.update_worker_filter_stats

    def _made(self, policy_id: str) -> RunnerConnectors:
        spaces, settings = self._spaces[policy_id], self._policies[policy_id]
        return RunnerConnectors(self._spec, *spaces, policy=settings)

    def module_spaces(self, policy_id: str) -> Spaces:
        """The observation and action space of the policy itself."""
        connectors = self[policy_id]
        return connectors.observations.output_space, connectors.action_space

    def add(self, policy_id: str, like: str) -> None:
        """Make a policy's connectors, with the statistics of another policy's."""
        self[policy_id] = self._made(policy_id)
        self[policy_id].set_state(self[like].get_state())

    def apply_deltas(self, deltas: Sequence[Mapping[str, Any]]) -> None:
        """Merge what runners have learned since their last replies."""
        for policy_id, connectors in self.items():
            connectors.apply_deltas([delta[policy_id] for delta in deltas if policy_id in delta])

    def get_state(self) -> dict[str, Any]:
        """The merged statistics."""
        return {policy_id: made.get_state() for policy_id, made in self.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        for policy_id, connectors in self.items():
            connectors.set_state(state[policy_id])
