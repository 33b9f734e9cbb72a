"""MultiAgentBatch: one SampleBatch per policy, counted in env steps.

SampleBatch is above this module, since any batch can become a multi-agent one (`as_multi_agent`).
So the policies' batches are known here by their methods alone, and typed as Any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from rlrun.data import columns as names
from rlrun.data.column_batch import ColumnBatch
from rlrun.data.column_data import Array

PolicyBatch = TypeVar("PolicyBatch", bound=ColumnBatch)

DEFAULT_POLICY_ID = "default_policy"
"""The policy of everything that does not name one."""


class MultiAgentBatch:
    """Batches of several policies from the same env steps.

    | attribute | meaning |
    |---|---|
    | policy_batches | policy id -> SampleBatch |
    | count | env steps: calls of an env's `step`, however many agents acted in each |
    """

    __slots__ = ("count", "policy_batches")

    def __init__(self, policy_batches: Mapping[str, ColumnBatch], env_steps: int):
        self.policy_batches: dict[str, Any] = dict(policy_batches)
        self.count = int(env_steps)

    @staticmethod
    def wrap_as_needed(
        policy_batches: Mapping[str, PolicyBatch], env_steps: int
    ) -> PolicyBatch | MultiAgentBatch:
        """The plain batch if the default policy is the only one, else a MultiAgentBatch."""
        if policy_batches.keys() == {DEFAULT_POLICY_ID}:
            return policy_batches[DEFAULT_POLICY_ID]
        return MultiAgentBatch(policy_batches, env_steps)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, policy_id: str) -> Any:
        """The SampleBatch of a policy."""
        return self.policy_batches[policy_id]

    def __contains__(self, policy_id: object) -> bool:
        return policy_id in self.policy_batches

    def __iter__(self) -> Iterator[str]:
        return iter(self.policy_batches)

    def __repr__(self) -> str:
        return f"MultiAgentBatch({self.policy_batches!r}, env_steps={self.count})"

    def __reduce__(self) -> tuple[Any, ...]:
        return MultiAgentBatch, (self.policy_batches, self.count)

    def env_steps(self) -> int:
        """Env steps: `count`."""
        return self.count

    def agent_steps(self) -> int:
        """Rows of all policies together."""
        return sum(batch.agent_steps() for batch in self.policy_batches.values())

    def timeslices(self, k: int) -> list[MultiAgentBatch]:
        """Slices of `k` env steps (the last may be shorter), the same steps for every policy.

        An env step is one (eps_id, t); slices go through them in sorted order. A policy without
        rows in a slice is not in it. Raises ValueError for k < 1 and for batches with seq_lens,
        whose rows cannot be reordered.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        batches = {pid: batch for pid, batch in self.policy_batches.items() if len(batch)}
        if not batches:
            return []
        steps = step_ranks(batches.values())
        slices: list[MultiAgentBatch] = []
        splits = np.cumsum([len(batch) for batch in batches.values()])[:-1]
        by_policy = dict(zip(batches, np.split(steps, splits), strict=True))
        num_steps = int(steps.max()) + 1
        for start in range(0, num_steps, k):
            stop = min(start + k, num_steps)
            parts = {}
            for policy_id, ranks in by_policy.items():
                rows = np.flatnonzero((ranks >= start) & (ranks < stop))
                if len(rows):
                    rows = rows[np.argsort(ranks[rows], kind="stable")]
                    parts[policy_id] = batches[policy_id].take(rows)
            slices.append(MultiAgentBatch(parts, stop - start))
        return slices

    def as_multi_agent(self) -> MultiAgentBatch:
        """Itself."""
        return self

    def copy(self, shallow: bool = False) -> MultiAgentBatch:
        """A copy of every policy's batch, deep unless `shallow`."""
        copies = {pid: batch.copy(shallow) for pid, batch in self.policy_batches.items()}
        return MultiAgentBatch(copies, self.count)

    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(batch.size_bytes() for batch in self.policy_batches.values())

    def compress(
        self, bulk: bool = False, columns: Iterable[str] = (names.OBS, names.NEXT_OBS)
    ) -> MultiAgentBatch:
        """Compresses columns of every policy's batch in place and returns itself."""
        for batch in self.policy_batches.values():
            batch.compress(bulk, columns)
        return self

    def decompress_if_needed(
        self, columns: Iterable[str] = (names.OBS, names.NEXT_OBS)
    ) -> MultiAgentBatch:
        """Undoes `compress` in place where it was done and returns itself."""
        for batch in self.policy_batches.values():
            batch.decompress_if_needed(columns)
        return self

    def set_training(self, training: bool = True) -> MultiAgentBatch:
        """Marks every policy's batch as (not) being trained on and returns itself."""
        for batch in self.policy_batches.values():
            batch.set_training(training)
        return self

    def to_device(self, device: Any) -> MultiAgentBatch:
        """The batches with torch tensors on `device` for columns."""
        moved = {pid: batch.to_device(device) for pid, batch in self.policy_batches.items()}
        return MultiAgentBatch(moved, self.count)

    def check_valid(self) -> None:
        """Raises ValueError if a policy's batch is invalid or the steps cannot be counted so."""
        for policy_id, batch in self.policy_batches.items():
            try:
                batch.check_valid()
            except ValueError as error:
                raise ValueError(f"policy {policy_id!r}: {error}") from None
        if self.count < 0:
            raise ValueError(f"env_steps is {self.count}")


def step_ranks(batches: Iterable[ColumnBatch]) -> Array:
    """For the rows of all batches, one after the other, the rank of their (eps_id, t)."""
    present = list(batches)
    episodes = np.concatenate([batch.column(names.EPS_ID) for batch in present])
    times = np.concatenate([batch.column(names.T) for batch in present]).astype(np.int64)
    _, episode_ranks = np.unique(episodes, return_inverse=True)
    times -= times.min()
    _, ranks = np.unique(episode_ranks * (times.max() + 1) + times, return_inverse=True)
    return ranks
