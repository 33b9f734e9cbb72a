"""SequenceReplayBuffer: sequences of one episode, drawn by the priority of their first step.

For recurrent networks (R2D2, Kapturowski et al. 2019): each step is kept with the state that the
network was in before it, so that a sequence may begin anywhere. Sequences overlap as they like and
no observation is kept twice; the ring is that of `ReplayBuffer`.

    S  sequences of a sample      M  steps of all of them

| column of a sample | row shape | meaning |
|---|---|---|
| obs, actions, rewards, new_obs, terminateds, truncateds | as added, ``[M, ...]`` | single steps |
| t | () ``[M]`` | step within the episode |
| further columns | as added, ``[M, ...]`` | but ``state_in_k``: ``[S, ...]``, of first steps |
| weights | () float32 ``[M]`` | of the sequence that the step is in |
| item_ids | () int64 ``[M]`` | the number of the transition |
| seq_lens | () int64 ``[S]`` | steps of each sequence |
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequences import sequence_offsets
from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from rlrun.replay.replay_buffer import Array


class SequenceReplayBuffer(PrioritizedReplayBuffer):
    """A ring of transitions that are sampled as sequences.

    Args:
        capacity: transitions that are kept, whatever the length of sequences.
        length: most steps of a sequence; it is shorter where its episode ends or has no more yet.
        further_columns: as for `ReplayBuffer`; states need one row for each step.
        alpha: as for `PrioritizedReplayBuffer`; 0 draws first steps uniformly.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        length: int = 20,
        further_columns: Sequence[str] = (),
        alpha: float = 0.6,
    ) -> None:
        if length < 1:
            raise ValueError(f"a sequence has at least 1 step, not {length}")
        super().__init__(capacity, further_columns=(col.T, *further_columns), alpha=alpha)
        self.length = length

    def sample(self, num_items: int, rng: np.random.Generator, *, beta: float = 0.4) -> SampleBatch:
        """So many sequences, with replacement.

        Raises:
            ValueError: when nothing has been added yet.
        """
        first, weights = self._draw(num_items, rng, beta)
        ids, lengths = self._runs(first, self.length)
        starts = sequence_offsets(lengths)[:-1]
        columns = {
            name: rows[starts] if name.startswith(col.STATE_IN_PREFIX) else rows
            for name, rows in self._rows(ids).items()
        }
        return SampleBatch.from_columns(
            {**columns, col.WEIGHTS: np.repeat(weights, lengths), col.SEQ_LENS: lengths}
        )

    def update_sequence_priorities(self, batch: SampleBatch, priorities: Array) -> None:
        """Give the first steps of sampled sequences new priorities ``[S]``."""
        starts = sequence_offsets(batch[col.SEQ_LENS])[:-1]
        self.update_priorities(batch.column(col.ITEM_IDS)[starts], priorities)
