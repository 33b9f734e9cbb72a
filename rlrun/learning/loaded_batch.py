"""LoadedBatch: a train batch on the learner's device, and its minibatches.

Moves a batch to the device once, and chooses the rows of minibatches. Must not know losses,
optimizers, or the meaning of columns.

    N  rows of a train batch      M  rows of the storage, or of a minibatch
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.data import columns as col
from rlrun.data.column_data import map_leaves, num_rows, pick
from rlrun.data.nested import nest
from rlrun.data.sample_batch import SampleBatch
from rlrun.policies.flat_parameters import to_tensors, weights_checksum
from rlrun.policies.layers import channels_first
from rlrun.policies.networks import channels_last
from rlrun.policies.rl_module import RLModule, actor_critic_outputs

Rows = dict[str, Any]
"""Columns of a minibatch by name, each ``[M, ...]``: tensors, or arrays for closed forms."""

MAX_ROWS = 4096  # of one forward pass over the whole batch; bounds memory on images


@dataclass(frozen=True)
class KnownOutputs:
    """The module's outputs for some rows of a batch, from when it acted on them."""

    rows: Tensor
    """Indices of the rows, int ``[K]``."""
    inputs: Tensor
    """Distribution inputs, ``[K, P]``."""
    values: Tensor
    """``[K]``."""


class LoadedBatch:
    """Columns of a train batch on the learner's device.

    Observations are as the runner stored them: one storage ``[M, ...]`` with each observation once,
    final ones included, and two index vectors ``[N]`` into it. Nested observations are a dict or
    tuple of such storages.

    Args:
        names: further columns to load; minibatches have ``new_obs`` only if it is among them.
        device: where columns become tensors; None leaves them arrays, for gradients in closed form.

    Attributes:
        prepare: applied to each minibatch as a whole, before several learners share it: a picklable
            function of its rows, which normalises advantages, for example.
    """

    prepare: Callable[[Rows], Rows] | None = None

    def __init__(
        self, batch: SampleBatch, names: tuple[str, ...], device: torch.device | None
    ) -> None:
        self._device = device
        self.next_obs_index: Any = None
        if col.NEXT_OBS in batch:
            storage, obs_index, next_obs_index = batch.in_one_storage(col.OBS, col.NEXT_OBS)
            self.next_obs_index = self._move(next_obs_index)
        else:  # actions to imitate, for example: nothing bootstraps
            storage, obs_index = batch.column(col.OBS), np.arange(len(batch))
        self.size = len(obs_index)
        self.storage, self._num_stored = self._move(storage), len(storage)
        self.obs_index = self._move(obs_index)
        self._indices = {col.OBS: self.obs_index}
        if col.NEXT_OBS in names:
            self._indices[col.NEXT_OBS] = self.next_obs_index
        self.columns: Rows = {
            name: self._move(batch.column(name)) for name in names if name != col.NEXT_OBS
        }

    def add(self, name: str, column: NDArray[Any] | Tensor) -> None:
        """Add a column ``[N, ...]`` that was computed from the others."""
        self.columns[name] = self._move(column) if isinstance(column, np.ndarray) else column

    def outputs(
        self, module: RLModule, max_rows: int, known: KnownOutputs | None = None
    ) -> tuple[Any, Any, Any]:
        """The module's outputs for all observations, computed once for each, without gradients.

        Args:
            known: outputs that need not be computed; only where columns are tensors.

        Returns:
            Distribution inputs ``[N, P]``, values ``[N]`` of obs, and values ``[N]`` of new_obs.

        Raises:
            KeyError: the batch came without ``new_obs``.
        """
        if self.next_obs_index is None:
            message = "the train batch lacks it, and its values bootstrap trajectories"
            raise KeyError(f"{col.NEXT_OBS!r}; {message}")
        storage, num_rows = self.storage, self._num_stored
        if known is not None:
            there = self.obs_index[known.rows]
            missing = torch.ones(num_rows, dtype=torch.bool).index_fill_(0, there, False)
            rest = missing.nonzero().squeeze(1)
            storage, num_rows = row_selector(storage)(rest), len(rest)
        chunks = []
        for a in range(0, num_rows, max_rows):
            rows = slice(a, a + max_rows)
            flat = isinstance(storage, Tensor | np.ndarray)
            obs = storage[rows] if flat else pick(storage, rows)
            chunks.append(self._outputs(module, {col.OBS: obs}))
        join: Any = np.concatenate if self._device is None else torch.cat
        inputs, values = map(join, zip(*chunks, strict=True))
        if known is not None:
            inputs, values = (
                torch.empty(self._num_stored, *computed.shape[1:])
                .index_copy_(0, rest, computed)
                .index_copy_(0, there, acted)
                for computed, acted in ((inputs, known.inputs), (values, known.values))
            )
        places = (inputs, self.obs_index), (values, self.obs_index), (values, self.next_obs_index)
        present, of_present, of_next = (row_selector(x)(index) for x, index in places)
        return present, of_present, of_next

    def _outputs(self, module: RLModule, rows: Rows) -> tuple[Any, Any]:
        """Distribution inputs ``[M, P]`` and values ``[M]``."""
        if self._device is None:
            in_numpy: Any = module
            inputs, values, _ = in_numpy.vjp(rows)
            return inputs, values
        return actor_critic_outputs(module, rows)

    def minibatches(self, num_epochs: int, size: int, rng: np.random.Generator) -> Minibatches:
        """Shuffled minibatches; the last of an epoch may be smaller, no row is left out."""
        return Minibatches(self, num_epochs, size, rng)

    def shuffled(self, num_epochs: int, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """The rows of `minibatches`, without `prepare`."""
        for _ in range(num_epochs):
            permutation = self._move(rng.permutation(self.size))
            # Small columns are shuffled once an epoch; observations, which may be large, are not.
            indices = {name: row_selector(i)(permutation) for name, i in self._indices.items()}
            columns = {name: row_selector(c)(permutation) for name, c in self.columns.items()}
            select = row_selector(self.storage)
            for begin in range(0, self.size, size):
                rows = slice(begin, begin + size)
                minibatch = {name: column[rows] for name, column in columns.items()}
                for name, index in indices.items():
                    minibatch[name] = select(index[rows])
                yield minibatch

    def microbatches(self, size: int | None) -> Iterator[Rows]:
        """The rows in order, at most ``size`` at a time; None takes all at once."""
        for begin in range(0, self.size, size or self.size):
            rows = slice(begin, begin + (size or self.size))
            microbatch = {name: column[rows] for name, column in self.columns.items()}
            for name, index in self._indices.items():
                microbatch[name] = row_selector(self.storage)(index[rows])
            yield microbatch

    def to(self, device: torch.device) -> Self:
        """The same batch on another device."""
        moved = copy.copy(self)
        known: dict[int, Any] = {}  # so that shared arrays stay shared
        for name, value in vars(self).items():
            setattr(moved, name, _moved(value, device, known))
        moved._device = None if self._device is None and device.type == "cpu" else device
        return moved

    def _move(self, array: NDArray[Any]) -> Any:
        """The array as a tensor on the device; as a nest of tensors if its rows are nested."""
        if array.dtype.names is not None:
            return map_leaves(self._move, nest(array))
        if self._device is None:
            return array
        # torch needs writable memory, and arrays from Ray's object store are read-only.
        if not array.flags.writeable:
            array = array.copy()
        moved = torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)
        is_image = moved.dim() == 4 and channels_first(moved.shape[1:])
        return channels_last(moved) if is_image else moved


@dataclass(frozen=True)
class Minibatches:
    """Minibatches of some epochs over a batch; picklable, with ``rng`` to choose the rows."""

    batch: LoadedBatch
    num_epochs: int
    size: int
    """Rows of a minibatch."""
    rng: np.random.Generator

    def __iter__(self) -> Iterator[Rows]:
        prepare = self.batch.prepare
        for rows in self.batch.shuffled(self.num_epochs, self.size, self.rng):
            yield rows if prepare is None else prepare(rows)

    def to(self, device: torch.device) -> Minibatches:
        """The same minibatches on another device."""
        return replace(self, batch=self.batch.to(device))


def outputs_in_eval_mode(
    rows: LoadedBatch, module: RLModule, known: KnownOutputs | None = None
) -> tuple[Any, Any, Any]:
    """`LoadedBatch.outputs` in evaluation mode as in env runners, without dropout, for example."""
    learning = [part for part in module.modules() if part.training]
    module.eval()
    try:
        return rows.outputs(module, MAX_ROWS, known)
    finally:
        for part in learning:
            part.training = True


def known_outputs(batch: SampleBatch, module: RLModule) -> KnownOutputs | None:
    """The outputs in a batch that env runners computed with the module's present weights.

    None if these outputs are not in the batch, or if the module is on a GPU, whose results differ
    in the last bits.
    """
    on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
    needed = {col.WEIGHTS_CHECKSUM, col.ACTION_DIST_INPUTS, col.VF_PREDS}
    left_out = frozenset[str]() if batch.reads is None else batch.reads.left_out
    if not on_cpu or needed & left_out or col.WEIGHTS_CHECKSUM not in batch:
        return None
    rows = np.flatnonzero(batch.column(col.WEIGHTS_CHECKSUM) == weights_checksum(module))
    outputs = (batch.column(name)[rows] for name in (col.ACTION_DIST_INPUTS, col.VF_PREDS))
    return KnownOutputs(*map(torch.from_numpy, (rows, *outputs)))


def row_selector(storage: Any) -> Callable[[Any], Any]:
    """A function that copies rows ``[M]`` of a storage, which may be nested.

    `index_select`, and numpy's `take`, copy whole rows; indexing copies element by element.
    """
    if isinstance(storage, np.ndarray):
        return partial(storage.take, axis=0)
    if not isinstance(storage, Tensor):
        return lambda rows: map_leaves(lambda leaf: row_selector(leaf)(rows), storage)
    if not storage.is_contiguous():  # images whose channels are last in memory; so are the copies
        select = row_selector(storage.permute(0, 2, 3, 1))
        return lambda rows: select(rows).permute(0, 3, 1, 2)
    return partial(storage.index_select, 0)


def num_rows_of(rows: Rows) -> int:
    """M of a minibatch, which has no observations if the module has views alone."""
    return next(num_rows(column) for name, column in rows.items() if col.is_countable(name))


def moved_rows(rows: Rows, device: torch.device) -> Rows:
    """These rows on a device, as tensors; on the CPU arrays stay arrays."""
    moved: Rows = _moved(rows, device, {})
    return moved


def _moved(value: Any, device: torch.device, known: dict[int, Any]) -> Any:
    if isinstance(value, np.ndarray) and device.type == "cpu":
        return value
    if isinstance(value, Tensor | np.ndarray):
        return known.setdefault(id(value), to_tensors(value, device))
    if isinstance(value, dict):
        return {name: _moved(item, device, known) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_moved(item, device, known) for item in value)
    return value


def as_tensors(rows: Rows, device: torch.device) -> Rows:
    """Arrays among these rows as tensors on a device; on the CPU they share memory."""
    if {*map(type, rows.values())} == {Tensor}:
        return rows
    return {name: to_tensors(column, device) for name, column in rows.items()}


def columns_of_numbers(batch: SampleBatch, module: RLModule) -> tuple[str, ...]:
    """Names of the columns with a number for each row, and ``new_obs``; ``obs`` is always loaded.

    Raises:
        ValueError: a column is not an array, or has another number of rows.
    """
    names = []
    for name in batch:
        other = name in module.view_requirements or name.startswith(col.NEXT_PREFIX)
        if other or not col.is_countable(name):
            continue
        column = batch.column(name)
        if not isinstance(column, np.ndarray) or len(column) != len(batch):
            raise ValueError(
                f"column {name!r} must be an array of the batch's {len(batch)} rows, not "
                f"{type(column).__name__} of shape {tuple(np.shape(column))}"
            )
        if column.dtype.kind in "biuf":
            names.append(name)
    return (*names, col.NEXT_OBS) if col.NEXT_OBS in batch else (*names,)
