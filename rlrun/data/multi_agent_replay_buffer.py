"""MultiAgentReplayBuffer: a replay buffer of its own for each policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from rlrun.data.multi_agent_batch import DEFAULT_POLICY_ID, MultiAgentBatch
from rlrun.data.sample_batch import SampleBatch


class MultiAgentReplayBuffer:
    """Keeps the policies' transitions apart; each policy's are sampled by themselves.

    Args:
        make_buffer: makes the buffer of a policy, given its id: any of the single-agent ones.

    Attributes:
        buffers: policy id -> its buffer; made when its first transitions come.
    """

    def __init__(self, make_buffer: Callable[[str], Any]) -> None:
        self._make_buffer = make_buffer
        self.buffers: dict[str, Any] = {}

    def __len__(self) -> int:
        """Transitions of all policies."""
        return sum(len(buffer) for buffer in self.buffers.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of the transitions held."""
        return sum(buffer.size_bytes for buffer in self.buffers.values())

    def add(self, batch: MultiAgentBatch | SampleBatch) -> None:
        """Append the rows of each policy to its buffer; a plain batch is the default policy's."""
        if isinstance(batch, SampleBatch):
            self._of(DEFAULT_POLICY_ID).add(batch)
            return
        for policy_id, rows in batch.policy_batches.items():
            self._of(policy_id).add(rows)

    def _of(self, policy_id: str) -> Any:
        if policy_id not in self.buffers:
            self.buffers[policy_id] = self._make_buffer(policy_id)
        return self.buffers[policy_id]

    def sample(
        self,
        num_items: int,
        rng: np.random.Generator,
        *,
        policies: Iterable[str] | None = None,
        **options: Any,
    ) -> MultiAgentBatch:
        """So many items of each policy; ``count`` are those of the policy that has most rows.

        Args:
            policies: only these; None takes all that have something.
            options: handed on, as ``beta`` to prioritised buffers.

        Raises:
            KeyError: for a policy that nothing was added of.
        """
        chosen = sorted(self.buffers) if policies is None else list(policies)
        batches = {
            policy_id: self.buffers[policy_id].sample(num_items, rng, **options)
            for policy_id in chosen
        }
        return MultiAgentBatch(batches, max(map(len, batches.values()), default=0))

    def update_priorities(self, item_ids: Mapping[str, Any], priorities: Mapping[str, Any]) -> None:
        """Give sampled transitions new priorities, policy by policy."""
        for policy_id, ids in item_ids.items():
            self.buffers[policy_id].update_priorities(ids, priorities[policy_id])

    def get_state(self) -> dict[str, Any]:
        """All that is held, by policy."""
        return {policy_id: buffer.get_state() for policy_id, buffer in self.buffers.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self.buffers = {}
        for policy_id, held in state.items():
            self._of(policy_id).set_state(held)
