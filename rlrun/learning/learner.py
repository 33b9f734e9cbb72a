"""Learner: a module, its optimizer and the loop over minibatches. Knows nothing of Ray or YAML.

What is optimised is a function the algorithm passes in; this class owns what all of them share.
All parameters are views into one vector, so that a step of Adam is a handful of operations, the
gradient norm is one and the weights leave as one buffer.

    N  rows of a train batch      M  rows of a minibatch      P  parameters
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.config.schema import LearnersConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.adam import FlatAdam
from rlrun.learning.devices import resolve_device
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.rl_module import RLModule

Rows = dict[str, Tensor]
Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]


class Learner:
    """Improves one module.

    Args:
        module: moved to the learner's device.
        training: learning rate and gradient clipping.
        settings: device, threads, compilation.
        adam_eps: Adam's epsilon.
    """

    def __init__(
        self,
        module: RLModule,
        training: TrainingConfig,
        settings: LearnersConfig,
        *,
        adam_eps: float = 1e-8,
    ) -> None:
        self.device = resolve_device(settings.device)
        self.module = module.to(self.device)
        self.parameters = FlatParameters(self.module)
        self.training = training
        self._compile = settings.compile
        self._compiled: dict[Loss, Loss] = {}
        num_threads = settings.num_threads or (None if _is_convolutional(module) else 1)
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self.optimizer = FlatAdam(self.parameters.vector, self.parameters.grads, eps=adam_eps)

    def load(self, batch: SampleBatch, names: tuple[str, ...]) -> LoadedBatch:
        """Move the named columns, and the observations' storage, to the device; once a batch."""
        return LoadedBatch(batch, names, self.device)

    def update(
        self,
        batch: LoadedBatch,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        *,
        lr: float,
        num_epochs: int,
        minibatch_size: int,
        rng: np.random.Generator,
        stop_early: Callable[[dict[str, Tensor]], bool] | None = None,
    ) -> dict[str, float]:
        """Run epochs of minibatch gradient steps; each epoch uses every row exactly once.

        Args:
            loss: ``loss(module, rows, **loss_arguments) -> (scalar, statistics)``.
            stop_early: called with a minibatch's statistics before its step; True ends the update.

        Returns:
            Statistics, averaged over the minibatches that were used.
        """
        function = self._maybe_compiled(loss)
        gathered: list[list[Tensor]] = []
        names: list[str] = []
        for rows in batch.minibatches(num_epochs, minibatch_size, rng):
            total, statistics = function(self.module, rows, **loss_arguments)
            if stop_early is not None and stop_early(statistics):
                break
            self.parameters.zero_grad()
            total.backward()
            statistics["grad_norm"] = self._clip_gradients()
            self.optimizer.step(lr)
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
        function = self._maybe_compiled(loss)
        means: dict[str, Tensor] = {}
        self.parameters.zero_grad()
        for rows in pieces:
            share = len(rows[col.OBS]) / num_rows
            total, statistics = function(self.module, rows, **loss_arguments)
            (total * share).backward()
            for name, value in statistics.items():
                means[name] = value * share + means.get(name, 0.0)
        means["grad_norm"] = self._clip_gradients()
        self.optimizer.step(lr)
        return means

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
        return {"optimizer": self.optimizer.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self.optimizer.set_state(state["optimizer"])

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
    """

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

    def chunks(self, size: int) -> Iterator[Tensor]:
        """The storage in pieces of at most ``size`` rows."""
        return iter(self.storage.split(size))

    def minibatches(self, num_epochs: int, size: int, rng: np.random.Generator) -> Iterator[Rows]:
        """Shuffled minibatches; the last of an epoch may be smaller, no row is left out."""
        for _ in range(num_epochs):
            permutation = torch.from_numpy(rng.permutation(self.size)).to(self._device)
            for rows in permutation.split(size):
                minibatch = {name: column[rows] for name, column in self.columns.items()}
                minibatch[col.OBS] = self.storage[self.obs_index[rows]]
                yield minibatch

    def pieces(self, size: int | None) -> Iterator[Rows]:
        """The rows in their order, at most ``size`` at a time; all at once if that is None."""
        for begin in range(0, self.size, size or self.size):
            rows = slice(begin, begin + (size or self.size))
            piece = {name: column[rows] for name, column in self.columns.items()}
            piece[col.OBS] = self.storage[self.obs_index[rows]]
            yield piece

    def _move(self, array: NDArray[Any]) -> Tensor:
        # torch wants writable memory, and what Ray delivers is not; nothing here writes to it.
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)


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
