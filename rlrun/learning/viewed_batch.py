"""ViewedBatch: the loaded batch of modules that see more than the present observation.

Owns what such a module is given with each row: views of other steps, and the states at the
beginning of sequences. Must not know how views were made, nor which module reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequences import sequence_lengths
from rlrun.learning.loaded_batch import LoadedBatch, Rows
from rlrun.learning.runs import Runs
from rlrun.policies.rl_module import RLModule


class ViewedBatch(LoadedBatch):
    """A train batch for modules that see more than the present observation.

    Behind the last step of each of its `Runs` follows the one that it led to, of which only the
    input is known: values of it bootstrap the returns, in the state that the run has led to.

        N  rows    S  runs    M  rows of a minibatch, without padding

    Args:
        views: names of what the module sees; states (``state_in_k``) have one row for each run.
    """

    def __init__(
        self,
        batch: SampleBatch,
        names: tuple[str, ...],
        device: torch.device,
        views: Sequence[str],
    ) -> None:
        self._device = device
        self.size = len(batch)
        self.columns = {name: self._move(batch.column(name)) for name in names}
        self._states = {
            name: self._move(batch.column(name))
            for name in views
            if name.startswith(col.STATE_IN_PREFIX)
        }
        recurrent = bool(self._states)
        lengths = batch.column(col.SEQ_LENS) if recurrent else sequence_lengths(batch)
        self._runs = Runs(np.asarray(lengths, dtype=np.int64), whole=recurrent)
        self._storages: dict[int, Tensor] = {}
        self._inputs = {
            name: self._present_and_next(batch, name) for name in views if name not in self._states
        }

    def _present_and_next(self, batch: SampleBatch, name: str) -> tuple[Tensor, Tensor | None]:
        """A view's rows ``[2 N, ...]``, those of one step later behind; as index if shared."""
        shared = batch.shared(name)
        shared_next = batch.shared(f"{col.NEXT_PREFIX}{name}")
        if shared is None or shared_next is None or shared[0] is not shared_next[0]:
            rows = batch.column(name), batch.column(f"{col.NEXT_PREFIX}{name}")
            return self._move(np.concatenate(rows)), None
        storage = self._storages.get(id(shared[0]))
        if storage is None:
            storage = self._storages[id(shared[0])] = self._move(shared[0])
        return storage, self._move(np.concatenate([shared[1], shared_next[1]]))

    def _rows(
        self, columns: Rows, positions: Tensor, runs: NDArray[np.int64], extra: int = 0
    ) -> Rows:
        """These columns, and what the module sees at rows of the batch, or at N + row a step later.

        Args:
            runs: which the rows are.
            extra: steps that each of them has more than in the batch.
        """
        seen = {
            name: storage[positions if index is None else index[positions]]
            for name, (storage, index) in self._inputs.items()
        }
        return {**columns, **seen, **self._sequences(runs, extra)}

    def outputs(self, module: RLModule, chunk_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `LoadedBatch.outputs`; runs one after the other, each with the step it led to."""
        positions, present = self._runs.with_next_steps()
        chunks = []
        for steps, runs in self._runs.chunks(chunk_size):
            rows = self._rows({}, self._move(positions[steps]), runs, extra=1)
            chunks.append(module.forward_train(rows))
        inputs = torch.cat([chunk[col.ACTION_DIST_INPUTS] for chunk in chunks])
        values = torch.cat([chunk[col.VF_PREDS] for chunk in chunks])
        here = self._move(present)
        return inputs[here], values[here], values[here + 1]

    def _sequences(self, runs: NDArray[np.int64], extra: int) -> Rows:
        """States and lengths of these runs; nothing for a module without states."""
        if not self._states:
            return {}
        index = self._move(runs)
        states = {name: state[index] for name, state in self._states.items()}
        return {**states, col.SEQ_LENS: self._move(self._runs.lengths[runs] + extra)}

    def shuffled(self, num_epochs: int, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Minibatches of ``size`` rows, or of whole sequences that begin within them."""
        for _ in range(num_epochs):
            yield from self._gathered(size, rng)

    def pieces(self, size: int | None) -> Iterator[Rows]:
        """See `LoadedBatch.pieces`; of recurrent modules whole sequences that begin in a piece."""
        yield from self._gathered(size or self.size, None)

    def _gathered(self, size: int, rng: np.random.Generator | None) -> Iterator[Rows]:
        for rows, runs in self._runs.groups(size, rng):
            index = self._move(rows)
            columns = {name: column[index] for name, column in self.columns.items()}
            yield self._rows(columns, index, runs)
