"""Which columns of train batches are read, so that the others need not be sent.

Batches record in the `ColumnReads` of their policy which of their columns are read. After the first
iteration in which a policy has learned, unread columns are left out of its further batches. Reading
such a column later is an error, and so is asking whether it is present: False could silently change
the result of learning. Knows nothing of algorithms, nor of what columns mean.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rlrun.data import columns as col

ALWAYS_KEPT = frozenset(
    {
        *(col.REWARDS, col.TERMINATEDS, col.TRUNCATEDS, col.SEQ_LENS),
        *(col.EPS_ID, col.UNROLL_ID, col.AGENT_INDEX, col.T),
    }
)
"""Columns that every train batch has, read or not."""


class ColumnReads:
    """Columns of one policy's batches: those seen, those read, and those left out."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.read: set[str] = set()
        self.left_out: frozenset[str] = frozenset()
        self.decided = False

    def leave_out(self, columns: frozenset[str]) -> None:
        """Set the columns that are left out; reads of the others are no longer recorded."""
        self.left_out, self.decided = columns, True

    def note(self, asked_for: Collection[str], present: Collection[str]) -> None:
        """Record that columns are read from a batch with the `present` ones.

        Raises KeyError for a column that is left out.
        """
        self.read.update(asked_for)
        late = sorted(self.left_out.intersection(asked_for).difference(present))
        if late:
            raise KeyError(
                f"{', '.join(late)}: left out of train batches, since nothing read it in the first "
                "iteration that learned. Read it there too, or name it in the algorithm's "
                "columns_read"
            )

    def note_all(self, present: Collection[str]) -> None:
        """Record that all columns are read, as by iteration; raises as `note` does."""
        self.note(self.left_out.union(present), present)


class ReadsByPolicy:
    """The reads of all policies' train batches.

    Attributes:
        left_out: columns that env runners need not send, by policy id.
    """

    def __init__(self) -> None:
        self._reads: dict[str, ColumnReads] = {}
        self.left_out: dict[str, frozenset[str]] = {}

    def watch(self, batches: Mapping[str, Any]) -> None:
        """Record from now on which columns are read from new batches, by policy id."""
        for policy_id, batch in batches.items():
            reads = self._reads.get(policy_id)
            if reads is None:
                reads = self._reads[policy_id] = ColumnReads()
            if not reads.decided:
                reads.seen.update(batch.keys())
            batch.reads = reads

    def settle(self, learned: Mapping[str, frozenset[str]]) -> None:
        """After an iteration, decide which columns of policies are left out, unless decided before.

        Args:
            learned: for each policy that has learned in it, or never will: the columns that are
                kept even if they were not read.
        """
        for policy_id in learned.keys() & self._reads.keys() - self.left_out.keys():
            reads = self._reads[policy_id]
            unread = reads.seen - reads.read - learned[policy_id] - ALWAYS_KEPT
            states = {name for name in unread if name.startswith(col.STATE_IN_PREFIX)}
            self.left_out[policy_id] = frozenset(unread - states)
            reads.leave_out(self.left_out[policy_id])

    def forget(self, policy_id: str) -> None:
        """Forget the reads of a removed policy, in case its id is used again."""
        self._reads.pop(policy_id, None)
        self.left_out.pop(policy_id, None)

    def get_state(self) -> dict[str, list[str]]:
        """The columns that are left out, by policy id, of policies that have been decided."""
        return {policy_id: sorted(unread) for policy_id, unread in self.left_out.items()}

    def set_state(self, state: Mapping[str, Iterable[str]]) -> None:
        """Restore a state from `get_state`; other policies are undecided again."""
        self._reads = {policy_id: ColumnReads() for policy_id in state}
        self.left_out = {policy_id: frozenset(unread) for policy_id, unread in state.items()}
        for policy_id, reads in self._reads.items():
            reads.leave_out(self.left_out[policy_id])
