"""MultiAgentReplayBuffer: a replay buffer of its own for each policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np

from rlrun.data.multi_agent_batch import MultiAgentBatch
from rlrun.data.sample_batch import SampleBatch
from rlrun.replay.step_index import StepIndex


class MultiAgentReplayBuffer:
    """Keeps the policies' transitions apart.

    Args:
        make_buffer: makes the buffer of a policy, given its id: any of the single-agent ones, but
            one that samples single transitions uniformly (`ReplayBuffer`) in lockstep.
        mode: "independent" samples each policy's transitions by themselves; "lockstep" draws env
            steps and takes all policies' transitions of those.

    Attributes:
        buffers: policy id -> its buffer; made when its first transitions come.
    """

    def __init__(
        self,
        make_buffer: Callable[[str], Any],
        *,
        mode: Literal["independent", "lockstep"] = "independent",
    ) -> None:
        if mode not in ("independent", "lockstep"):
            raise ValueError(f"mode {mode!r} is neither independent nor lockstep")
        self._make_buffer = make_buffer
        self.mode = mode
        self.buffers: dict[str, Any] = {}
        self._steps: StepIndex | None = None  # in lockstep, once there is a buffer

    def __len__(self) -> int:
        """Transitions of all policies."""
        return sum(len(buffer) for buffer in self.buffers.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of the transitions held."""
        return sum(buffer.size_bytes for buffer in self.buffers.values())

    def add(self, batch: MultiAgentBatch | SampleBatch) -> None:
        """Append the rows of each policy to its buffer; a plain batch is the default policy's.

        Raises:
            ValueError: in lockstep, for a batch that the buffers cannot hold as a whole.
        """
        of_all = batch.as_multi_agent().policy_batches
        batches = {policy_id: rows for policy_id, rows in of_all.items() if len(rows)}
        if not batches:
            return
        first = {policy_id: self._of(policy_id).num_added for policy_id in batches}
        for policy_id, rows in batches.items():
            self.buffers[policy_id].add(rows)
        if self.mode == "lockstep":
            capacities = {name: buffer.capacity for name, buffer in self.buffers.items()}
            oldest = {name: held.num_added - len(held) for name, held in self.buffers.items()}
            self._index().add(batches, first, oldest, capacities)

    def _of(self, policy_id: str) -> Any:
        if policy_id not in self.buffers:
            self.buffers[policy_id] = self._make_buffer(policy_id)
        return self.buffers[policy_id]

    def _index(self) -> StepIndex:
        if self._steps is None:
            self._steps = StepIndex(max(buffer.capacity for buffer in self.buffers.values()))
        return self._steps

    def sample(
        self,
        num_items: int,
        rng: np.random.Generator,
        *,
        policies: Iterable[str] | None = None,
        **options: Any,
    ) -> MultiAgentBatch:
        """So many items of each policy; in lockstep all transitions of so many env steps.

        Args:
            policies: only these; None takes all that have something.
            options: handed on, as ``beta`` to prioritised buffers; none in lockstep.

        Returns:
            A batch whose ``count`` are the rows of the policy that has most, or the env steps.

        Raises:
            KeyError: for a policy that nothing was added of.
            ValueError: nothing can be sampled yet.
        """
        chosen = sorted(self.buffers) if policies is None else list(policies)
        if self.mode == "lockstep":
            ids = self._index().sample(num_items, rng)
            drawn = {name: self.buffers[name].gather(ids[name]) for name in chosen if name in ids}
            return MultiAgentBatch(drawn, num_items)
        batches = {
            policy_id: self.buffers[policy_id].sample(num_items, rng, **options)
            for policy_id in chosen
        }
        return MultiAgentBatch(batches, max(map(len, batches.values()), default=0))

    def update_priorities(self, item_ids: Mapping[str, Any], priorities: Mapping[str, Any]) -> None:
        """Give sampled transitions new priorities, policy by policy."""
        for policy_id, ids in item_ids.items():
            self.buffers[policy_id].update_priorities(ids, priorities[policy_id])

    def forget(self, policy_id: str) -> None:
        """Drop what is held of a policy."""
        self.buffers.pop(policy_id, None)
        if self._steps is not None:
            self._steps.forget(policy_id)

    def get_state(self) -> dict[str, Any]:
        """All that is held."""
        return {
            "buffers": {
                policy_id: buffer.get_state() for policy_id, buffer in self.buffers.items()
            },
            "steps": None if self._steps is None else self._steps.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self.buffers, self._steps = {}, None
        for policy_id, held in state["buffers"].items():
            self._of(policy_id).set_state(held)
        if state["steps"] is not None:
            self._index().set_state(state["steps"])
