"""ViewedBatch: the loaded batch of modules that see more than the present observation.

Owns the input of such a module in each row: views of other steps, and the states at the beginning
of sequences. Must not know how views are made, or which module reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.data import columns as col
from rlrun.data.column_data import pick
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequences import sequence_lengths
from rlrun.learning.loaded_batch import KnownOutputs, LoadedBatch, Rows
from rlrun.policies.rl_module import RLModule, actor_critic_outputs

Index = NDArray[np.int64]


class ViewedBatch(LoadedBatch):
    """A train batch for modules that see more than the present observation.

    After the last step of each sequence comes the step that it led to. Only its input is known; its
    value, computed in the state after the sequence, bootstraps the returns.

        N  rows    S  sequences    M  rows of a minibatch, without padding

    Args:
        views: names of what the module sees; states (``state_in_k``) have one row a sequence.
    """

    def __init__(
        self, batch: SampleBatch, names: tuple[str, ...], device: torch.device, views: Sequence[str]
    ) -> None:
        self._device = device
        self.size = len(batch)
        self._with_next_obs = col.NEXT_OBS in names
        self.columns = {
            name: self._move(batch.column(name)) for name in names if name != col.NEXT_OBS
        }
        self._states = {
            name: self._move(batch.column(name))
            for name in views
            if name.startswith(col.STATE_IN_PREFIX)
        }
        recurrent = bool(self._states)
        lengths = batch.column(col.SEQ_LENS) if recurrent else sequence_lengths(batch)
        self._sequences = SequenceIndex(np.asarray(lengths, dtype=np.int64), whole=recurrent)
        self._storages: dict[int, Tensor] = {}
        self._inputs = {
            name: self._present_and_next(batch, name) for name in views if name not in self._states
        }

    def _present_and_next(self, batch: SampleBatch, name: str) -> tuple[Tensor, Tensor | None]:
        """A view's rows ``[2 N, ...]``, of each step and then of the next; an index if shared."""
        shared = batch.shared(name)
        shared_next = batch.shared(f"{col.NEXT_PREFIX}{name}")
        if shared is None or shared_next is None or shared[0] is not shared_next[0]:
            rows = batch.column(name), batch.column(f"{col.NEXT_PREFIX}{name}")
            return self._move(np.concatenate(rows)), None
        storage = self._storages.get(id(shared[0]))
        if storage is None:
            storage = self._storages[id(shared[0])] = self._move(shared[0])
        return storage, self._move(np.concatenate([shared[1], shared_next[1]]))

    def _rows(self, columns: Rows, positions: Tensor, sequences: Index, extra: int = 0) -> Rows:
        """These columns, and what the module sees at rows of the batch, or at N + row a step later.

        A module with states also gets the states and lengths of the sequences.

        Args:
            sequences: which the rows are.
            extra: steps that each of them has more than in the batch.
        """
        seen = {}
        for name, (storage, index) in self._inputs.items():
            there = positions if index is None else index[positions]
            flat = isinstance(storage, Tensor)
            seen[name] = storage[there] if flat else pick(storage, there)
        if not self._states:
            return {**columns, **seen}
        index = self._move(sequences)
        states = {name: state[index] for name, state in self._states.items()}
        lengths = self._move(self._sequences.lengths[sequences] + extra)
        return {**columns, **seen, **states, col.SEQ_LENS: lengths}

    def outputs(
        self, module: RLModule, max_rows: int, known: KnownOutputs | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `LoadedBatch.outputs`; sequences one by one, each with the step it led to.

        Everything is computed: with a memory, values of what a sequence led to need all of it.
        """
        positions, present = self._sequences.with_next_steps()
        chunks = []
        for steps, sequences in self._sequences.slices(max_rows):
            rows = self._rows({}, self._move(positions[steps]), sequences, extra=1)
            chunks.append(actor_critic_outputs(module, rows))
        inputs, values = map(torch.cat, zip(*chunks, strict=True))
        here = self._move(present)
        return inputs[here], values[here], values[here + 1]

    def shuffled(self, num_epochs: int, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Minibatches of ``size`` rows, or of whole sequences that begin within them."""
        for _ in range(num_epochs):
            yield from self._gathered(size, rng)

    def microbatches(self, size: int | None) -> Iterator[Rows]:
        """See `LoadedBatch.microbatches`; of recurrent modules whole sequences that begin there."""
        yield from self._gathered(size or self.size, None)

    def _gathered(self, size: int, rng: np.random.Generator | None) -> Iterator[Rows]:
        for rows, sequences in self._sequences.groups(size, rng):
            index = self._move(rows)
            columns = {name: column[index] for name, column in self.columns.items()}
            if self._with_next_obs:
                columns[col.NEXT_OBS] = self._rows({}, index + self.size, sequences)[col.OBS]
            yield self._rows(columns, index, sequences)


class SequenceIndex:
    """Which rows belong to which sequence of a batch, and in which order; knows no columns.

    A sequence is what a recurrent module is unrolled over; for other modules, the part of an
    episode that is in the batch. Sequences stand one after the other.

        N  rows    S  sequences

    Args:
        lengths: rows of each, ``[S]``; they add up to N.
        whole: never split a sequence, as recurrent modules need.
    """

    def __init__(self, lengths: Index, *, whole: bool) -> None:
        self.lengths, self._whole = lengths, whole
        self.starts = np.cumsum(lengths) - lengths
        self.num_rows = int(lengths.sum())

    def with_next_steps(self) -> tuple[Index, Index]:
        """All rows, and after each sequence the step that it led to.

        Returns:
            For each of these N + S positions the row it stands for, N + row for a step later; and
            the positions of the rows, ``[N]``.
        """
        num_sequences = len(self.lengths)
        present = np.arange(self.num_rows) + np.repeat(np.arange(num_sequences), self.lengths)
        rows = np.empty(self.num_rows + num_sequences, dtype=np.int64)
        rows[present] = np.arange(self.num_rows)
        ends = self.starts + self.lengths
        rows[ends + np.arange(num_sequences)] = self.num_rows + ends - 1
        return rows, present

    def slices(self, size: int) -> Iterator[tuple[slice, Index]]:
        """Slices of `with_next_steps`, about ``size`` long, and the whole sequences in each."""
        bounds = np.concatenate([[0], np.cumsum(self.lengths + 1)])
        if not self._whole:
            total = int(bounds[-1])
            yield from ((slice(a, a + size), self.starts[:0]) for a in range(0, total, size))
            return
        first = 0
        while first < len(self.lengths):
            last = max(first + 1, int(np.searchsorted(bounds, bounds[first] + size, "right")) - 1)
            yield slice(int(bounds[first]), int(bounds[last])), np.arange(first, last)
            first = last

    def groups(
        self, size: int, rng: np.random.Generator | None = None
    ) -> Iterator[tuple[Index, Index]]:
        """Groups of ``size`` rows, or of the whole sequences that begin within them; and these.

        Args:
            rng: shuffles rows, or whole sequences; None leaves them in their order.
        """
        number = len(self.lengths) if self._whole else self.num_rows
        order = np.arange(number) if rng is None else rng.permutation(number)
        if not self._whole:
            yield from ((order[a : a + size], order[:0]) for a in range(0, number, size))
            return
        lengths = self.lengths[order]
        begins = np.cumsum(lengths) - lengths
        cuts = np.flatnonzero(np.diff(begins // size)) + 1
        for sequences in np.split(order, cuts):
            parts = [
                np.arange(a, a + n)
                for a, n in zip(self.starts[sequences], self.lengths[sequences], strict=True)
            ]
            yield np.concatenate(parts), sequences
