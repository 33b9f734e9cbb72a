"""Learner: a module, its optimizer and the loop over minibatches. Knows nothing of Ray or YAML.

What is optimised is a function the algorithm passes in; this class owns what all of them share.
All parameters are views into one vector, so that a step of Adam is a handful of operations, the
gradient norm is one and the weights leave as one buffer.

    N  rows of a train batch      M  rows of a minibatch      P  parameters
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.config.schema import LearnersConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequences import sequence_lengths
from rlrun.learning.adam import FlatAdam
from rlrun.learning.devices import resolve_device
from rlrun.learning.peers import Peers
from rlrun.learning.rmsprop import FlatRMSProp
from rlrun.learning.runs import Runs
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.rl_module import RLModule

Rows = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
Gradient = Callable[..., dict[str, Tensor]]
"""Called as a loss is; leaves its gradient in the parameters and returns its statistics."""


class Learner:
    """Improves one module.

    Args:
        module: moved to the learner's device.
        training: gradient clipping and the optimizer.
        settings: device, threads, compilation.
        peers: learners in other processes, with which this one makes each step.

    Attributes:
        views: names of what the module is given of each batch; empty where that is the present
            observation alone. Of what the module asked for, those may be taken out that it does not
            read.
    """

    def __init__(
        self,
        module: RLModule,
        training: TrainingConfig,
        settings: LearnersConfig,
        *,
        peers: Peers | None = None,
    ) -> None:
        self._peers = peers
        self.device = resolve_device(settings.device)
        self.module = module.to(self.device)
        self.parameters = FlatParameters(self.module)
        self.training = training
        self._compile = settings.compile
        self._compiled: dict[Loss, Loss] = {}
        num_threads = settings.num_threads or (None if _is_convolutional(module) else 1)
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        views = module.view_requirements
        seen = [name for name, view in views.items() if view.is_acted_on(name)]
        # Nothing but the present observation needs no further thought.
        self.views = seen if seen != [col.OBS] or not views[col.OBS].is_plain(col.OBS) else []
        self.optimizer = _optimizer(self.parameters, training)
        self._trained = [p for p in self.module.parameters() if p.requires_grad]

    def load(self, batch: SampleBatch, names: tuple[str, ...]) -> LoadedBatch:
        """Move the named columns, and what the module sees, to the device; once a batch."""
        if self.views:
            return ViewedBatch(batch, names, self.device, self.views)
        return LoadedBatch(batch, names, self.device)

    def update(
        self,
        minibatches: Iterable[Rows],
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        *,
        lr: float,
        gradient: Gradient | None = None,
        stop_early: Callable[[dict[str, Tensor]], bool] | None = None,
    ) -> dict[str, float]:
        """Take a gradient step on each minibatch.

        Args:
            minibatches: `LoadedBatch.minibatches`.
            loss: ``loss(module, rows, **loss_arguments) -> (scalar, statistics)``.
            gradient: the loss's, written out; None leaves it to autograd.
            stop_early: called with a minibatch's statistics before its step; True ends the update.

        Returns:
            Statistics, averaged over the minibatches that were used.
        """
        if gradient is None or self._compile:
            gradient = self._gradient_of(loss)
        if self._peers is not None:
            gradient = self._peers.shared(gradient, self.parameters.grads)
        gathered: list[list[Tensor]] = []
        names: list[str] = []
        for rows in minibatches:
            statistics = gradient(self.module, rows, **loss_arguments)
            if stop_early is not None and stop_early(statistics):
                break
            statistics["grad_norm"] = self.apply_gradients(lr)
            names = list(statistics)
            gathered.append(list(statistics.values()))
        num_updates = len(gathered)
        if not num_updates:
            return {"num_updates": 0.0}
        means = torch.stack([x for row in gathered for x in row]).view(num_updates, -1).mean(0)
        result = dict(zip(names, means.tolist(), strict=True))
        return {**result, "num_updates": float(num_updates)}

    def accumulate(
        self,
        pieces: Iterable[Rows],
        num_rows: int,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        *,
        lr: float,
    ) -> dict[str, Tensor]:
        """One gradient step on all the pieces of a batch, which are looked at one after another.

        The gradients of the pieces are added, each with the share of rows that it holds, so the
        step is that of the whole batch while memory is needed for one piece only.

        Args:
            pieces: rows of the batch, together ``num_rows``.
            loss: a mean over its rows, called as in `update`.

        Returns:
            Statistics, scalars on the device, averaged over rows; ``grad_norm`` is of the step.
        """
        means = self.compute_gradients(pieces, num_rows, loss, loss_arguments)
        means["grad_norm"] = self.apply_gradients(lr)
        return means

    def compute_gradients(
        self, pieces: Iterable[Rows], num_rows: int, loss: Loss, loss_arguments: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """The first half of `accumulate`: gradients, which `parameters.grads` holds afterwards."""
        function = self._maybe_compiled(loss)
        means: dict[str, Tensor] = {}
        self.parameters.zero_grad()
        for piece in pieces:
            rows, weight = (piece, 1.0) if self._peers is None else self._peers.part_of(piece)
            share = weight * len(piece[col.OBS]) / num_rows
            total, statistics = function(self.module, rows, **loss_arguments)
            (total * share).backward()
            for name, value in statistics.items():
                means[name] = value * share + means.get(name, 0.0)
        return means if self._peers is None else self._peers.add_up(self.parameters.grads, means)

    def apply_gradients(self, lr: float) -> Tensor:
        """The second half: a step along `parameters.grads`; returns their norm before clipping."""
        norm = self._clip_gradients()
        self.optimizer.step(lr)
        return norm

    def step(
        self,
        rows: Rows,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        *,
        lr: float,
        gradient: Gradient | None = None,
    ) -> dict[str, Tensor]:
        """One gradient step on one minibatch.

        Only this learner's module gets gradients; other networks that the loss goes through, as a
        policy's goes through its critic, do not even have theirs computed.

        Args:
            loss, gradient: called as in `update`.

        Returns:
            The loss's statistics on the device, and ``grad_norm``.
        """
        if gradient is None or self._compile:
            gradient = self._gradient_of(loss)
        statistics = gradient(self.module, rows, **loss_arguments)
        statistics["grad_norm"] = self.apply_gradients(lr)
        return statistics

    def _gradient_of(self, loss: Loss) -> Gradient:
        function = self._maybe_compiled(loss)

        def gradient(module: RLModule, rows: Rows, **arguments: Any) -> dict[str, Tensor]:
            total, statistics = function(module, rows, **arguments)
            self.parameters.zero_grad()
            total.backward(inputs=self._trained)
            return statistics

        return gradient

    def _maybe_compiled(self, loss: Loss) -> Loss:
        if not self._compile:
            return loss
        if loss not in self._compiled:
            self._compiled[loss] = torch.compile(loss)
        return self._compiled[loss]

    def _clip_gradients(self) -> Tensor:
        """Bound the gradients as `training` says; returns the global norm before that."""
        grads, bound = self.parameters.grads, self.training.grad_clip
        norm = torch.linalg.vector_norm(grads)
        if bound is None:
            return norm
        match self.training.grad_clip_by:
            case "global_norm":
                grads.mul_((bound / (norm + 1e-6)).clamp_(max=1.0))
            case "value":
                grads.clamp_(-bound, bound)
            case "norm":
                for parameter in self.module.parameters():
                    torch.nn.utils.clip_grad_norm_(parameter, bound)
        return norm

    def get_weights(self) -> NDArray[np.float32]:
        """A copy of all weights as one vector, float32 ``[P]``."""
        return self.parameters.to_numpy()

    def get_state(self) -> dict[str, Any]:
        """The optimizer's state; weights are kept apart, by name (`named_weights`)."""
        return {"kind": self.training.optimizer, "optimizer": self.optimizer.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned; another optimizer's state says nothing to this."""
        if state["kind"] == self.training.optimizer:
            self.optimizer.set_state(state["optimizer"])

    def stop(self) -> None:
        """End processes that belong to this learner; one alone has none."""

    def named_weights(self) -> dict[str, NDArray[Any]]:
        """Copies of the weights by parameter name, as a checkpoint stores them."""
        return self.parameters.named_arrays()

    def load_named_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take over weights by name; raises ValueError if they belong to another model."""
        self.parameters.load_named(weights)


class LoadedBatch:
    """Columns of a train batch on the learner's device.

    Observations stay where the runner put them: one storage ``[M, ...]`` with the rows of every
    step and every final observation once, and two index vectors ``[N]`` into it.

    Attributes:
        prepare: what is done with each whole minibatch before learners take their parts of it, as
            bringing advantages to mean 0 is; a function of its rows that can be pickled.
    """

    prepare: Callable[[Rows], Rows] | None = None

    def __init__(self, batch: SampleBatch, names: tuple[str, ...], device: torch.device) -> None:
        shared, shared_next = batch.shared(col.OBS), batch.shared(col.NEXT_OBS)
        if shared is None or shared_next is None or shared[0] is not shared_next[0]:
            storage = np.concatenate([batch[col.OBS], batch[col.NEXT_OBS]])
            index = np.arange(len(batch))
            shared, shared_next = (storage, index), (storage, index + len(batch))
        self._device = device
        self.size = len(shared[1])
        self.storage = self._move(shared[0])
        self.obs_index = self._move(shared[1])
        self.next_obs_index = self._move(shared_next[1])
        self.columns: Rows = {name: self._move(batch.column(name)) for name in names}

    def add(self, name: str, column: NDArray[Any] | Tensor) -> None:
        """Add a column ``[N, ...]`` that was computed from the others."""
        moved = self._move(column) if isinstance(column, np.ndarray) else column
        self.columns[name] = moved

    def outputs(self, module: RLModule, chunk_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """The module on all observations, without their gradients: each observation once.

        Returns:
            Distribution inputs ``[N, P]`` and values ``[N]`` of every step, and the values ``[N]``
            of what the step led to.
        """
        chunks = [
            module.forward_train({col.OBS: chunk}) for chunk in self.storage.split(chunk_size)
        ]
        inputs = torch.cat([chunk[col.ACTION_DIST_INPUTS] for chunk in chunks])
        values = torch.cat([chunk[col.VF_PREDS] for chunk in chunks])
        return inputs[self.obs_index], values[self.obs_index], values[self.next_obs_index]

    def minibatches(self, num_epochs: int, size: int, rng: np.random.Generator) -> Minibatches:
        """Shuffled minibatches; the last of an epoch may be smaller, no row is left out."""
        return Minibatches(self, num_epochs, size, rng)

    def shuffled(self, num_epochs: int, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """What `minibatches` goes through, before it is prepared."""
        for _ in range(num_epochs):
            permutation = torch.from_numpy(rng.permutation(self.size)).to(self._device)
            # Small columns are shuffled once an epoch; observations, which may be large, are not.
            shuffled = [column[permutation].split(size) for column in self.columns.values()]
            index = self.obs_index[permutation].split(size)
            for rows, *parts in zip(index, *shuffled, strict=True):
                minibatch = dict(zip(self.columns, parts, strict=True))
                minibatch[col.OBS] = self.storage[rows]
                yield minibatch

    def pieces(self, size: int | None) -> Iterator[Rows]:
        """The rows in their order, at most ``size`` at a time; all at once if that is None."""
        for begin in range(0, self.size, size or self.size):
            rows = slice(begin, begin + (size or self.size))
            piece = {name: column[rows] for name, column in self.columns.items()}
            piece[col.OBS] = self.storage[self.obs_index[rows]]
            yield piece

    def to(self, device: torch.device) -> Self:
        """The same batch on another device."""
        moved = copy.copy(self)
        known: dict[int, Tensor] = {}  # what is shared stays shared
        for name, value in vars(self).items():
            setattr(moved, name, _moved(value, device, known))
        moved._device = device
        return moved

    def _move(self, array: NDArray[Any]) -> Tensor:
        # torch wants writable memory, and what Ray delivers is not; nothing here writes to it.
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)


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


@dataclass(frozen=True)
class Minibatches:
    """Minibatches of some epochs over a batch. Can be pickled: which rows follow from ``rng``."""

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


def _optimizer(parameters: FlatParameters, training: TrainingConfig) -> FlatAdam | FlatRMSProp:
    vector, grads = parameters.vector, parameters.grads
    if training.optimizer == "rmsprop":
        return FlatRMSProp(
            vector, grads, decay=training.rmsprop_decay, eps=training.rmsprop_epsilon
        )
    return FlatAdam(vector, grads, eps=training.adam_epsilon)


def _moved(value: Any, device: torch.device, known: dict[int, Tensor]) -> Any:
    """The value with all tensors in it on the device."""
    if isinstance(value, Tensor):
        return known.setdefault(id(value), value.to(device))
    if isinstance(value, dict):
        return {name: _moved(item, device, known) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_moved(item, device, known) for item in value)
    return value


def value_at(schedule: float | tuple[tuple[int, float], ...], env_steps: int) -> float:
    """The schedule's value: linear between its points, the last value after them.

    Args:
        schedule: a number, or points ``(env_steps, value)`` in ascending order.
        env_steps: env steps sampled before the update that uses the value.
    """
    if isinstance(schedule, (int, float)):
        return float(schedule)
    steps, values = zip(*schedule, strict=True)
    return float(np.interp(env_steps, steps, values))


def _is_convolutional(module: torch.nn.Module) -> bool:
    return any(isinstance(part, torch.nn.Conv2d) for part in module.modules())
