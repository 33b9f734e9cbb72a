"""Learner: a module, its optimizer and the loop over minibatches. Knows nothing of Ray or YAML.

The loss is a function that the algorithm passes in; rows come from a `LoadedBatch`.

All parameters are views into one vector: a step of the optimizer is one operation, so is the
gradient norm, and the weights leave as one buffer.

    M  rows of a minibatch      P  parameters
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.config.registry import import_object
from rlrun.config.schema import LearnersConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.cuda_graphs import CudaGraphs
from rlrun.learning.loaded_batch import LoadedBatch, Minibatches, Rows, as_tensors, num_rows_of
from rlrun.learning.losses import (
    Gradient,
    Loss,
    Statistics,
    changed_loss,
    require_lasting,
    require_loss,
    require_numbers,
)
from rlrun.learning.machine import keep_freed_memory, resolve_device, set_num_threads
from rlrun.learning.optimizers import make_optimizer
from rlrun.learning.process_group import EXTREMES, ProcessGroup
from rlrun.learning.viewed_batch import ViewedBatch
from rlrun.policies.flat_parameters import FlatParameters, integer_buffers, set_integer_buffers
from rlrun.policies.rl_module import RLModule
from rlrun.policies.view_reads import unread_views


class Learner:
    """Trains one module.

    Args:
        module: moved to the learner's device.
        training: gradient clipping and the optimizer.
        settings: device, threads, compilation.

    Attributes:
        group: the learners in other processes with which this one takes each step; None if alone.
        views: names of the views that the module reads in `forward_train`; empty if it reads the
            present observation alone.
    """

    def __init__(
        self, module: RLModule, training: TrainingConfig, settings: LearnersConfig
    ) -> None:
        self.group: ProcessGroup | None = None
        self.device = resolve_device(settings.device)
        self.module = module.to(self.device)
        self.parameters = FlatParameters(self.module)
        self.training = training
        self._compile = settings.compile
        self._hook = None if training.loss is None else import_object(training.loss)
        # Although a gradient is given: a group's driver may be on the CPU, its learners on GPUs.
        self._by_autograd = not self.module.has_vjp or self._compile or self._hook is not None
        self._gradients: dict[Loss, Gradient] = {}  # by compiled or recorded losses
        if self.device.type == "cpu":
            keep_freed_memory()
        convolutional = any(isinstance(part, torch.nn.Conv2d) for part in module.modules())
        num_threads = settings.num_threads or (None if convolutional else 1)
        if num_threads is not None:
            set_num_threads(num_threads)
        views = module.view_requirements
        seen = [name for name, view in views.items() if view.is_acted_on(name)]
        only_obs = seen == [col.OBS] and views[col.OBS].is_plain(col.OBS)
        unread = unread_views(self.module, "forward_train")
        self.views = [] if only_obs else [name for name in seen if name not in unread]
        # Views that the module cannot have when it acts, such as of later steps, are for losses.
        self._for_losses = [n for n in views if views[n].used_for_training and n not in seen]
        self.optimizer = make_optimizer(self.parameters, training)
        self._records = settings.cuda_graphs and self.device.type == "cuda"
        self._step = self.recorded(self._clip_and_step)
        self._trained = [p for p in self.module.parameters() if p.requires_grad]

    def load(self, batch: SampleBatch, names: tuple[str, ...]) -> LoadedBatch:
        """Load these columns and the module's views: as tensors, or as arrays for closed forms."""
        names += tuple(name for name in self._for_losses if batch.column(name).dtype.kind in "biuf")
        if self.views:
            return ViewedBatch(batch, names, self.device, self.views)
        return LoadedBatch(batch, names, self.device if self._by_autograd else None)

    def update(
        self,
        minibatches: Minibatches,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        *,
        lr: float,
        gradient: Gradient | None = None,
        stop_early: Callable[[Statistics], bool] | None = None,
    ) -> dict[str, float]:
        """Take a gradient step on each minibatch.

        Args:
            minibatches: from `LoadedBatch.minibatches`.
            loss: ``loss(module, rows, **loss_arguments) -> (scalar, statistics)``.
            gradient: the loss's gradient in closed form, used if the module has a `vjp` and the
                loss is neither compiled nor changed by `training.loss`; otherwise autograd's is.
            stop_early: called with each minibatch's statistics before its step; ends the update
                if it returns True.

        Returns:
            Statistics over the minibatches that were used, as `reduced` makes them.
        """
        if gradient is None or self._by_autograd:
            gradient = self._gradient_of(loss)
        if self.group is not None:
            gradient = self._shared(gradient, self.group)
        gathered: list[Statistics] = []
        for rows in minibatches:
            statistics = gradient(self.module, rows, **loss_arguments)
            if stop_early is not None and stop_early(statistics):
                break
            gathered.append(statistics | self._step({"lr": lr}))
        means = reduced(gathered) if gathered else {}
        return {**means, "num_updates": float(len(gathered))}

    def accumulate(
        self,
        microbatches: Iterable[Rows],
        num_rows: int,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        *,
        lr: float,
        gradient: Gradient | None = None,
    ) -> Statistics:
        """Take one gradient step on a whole batch, with the memory for one microbatch.

        The gradients of the microbatches are added up, each weighted by its share of the rows.

        Args:
            microbatches: rows of the batch, ``num_rows`` in all.
            loss, gradient: as in `update`; the loss must be a mean over rows.

        Returns:
            Statistics as `reduced` makes them, weighted by rows, and the step's ``grad_norm``.
        """
        means = self.compute_gradients(microbatches, num_rows, loss, loss_arguments, gradient)
        return means | self._step({"lr": lr})

    def compute_gradients(
        self,
        microbatches: Iterable[Rows],
        num_rows: int,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        gradient: Gradient | None = None,
    ) -> Statistics:
        """The first half of `accumulate`: leave the gradient in `parameters.grads`."""
        if gradient is None or self._by_autograd:
            gradient = self._gradient_of(loss)
        grads, group = self.parameters.grads, self.group
        gathered, shares = list[Statistics](), list[float]()
        total = torch.zeros_like(grads)
        for whole in microbatches:
            rows, weight = (whole, 1.0) if group is None else group.part_of(whole)
            share = weight * num_rows_of(whole) / num_rows
            gathered.append(gradient(self.module, rows, **loss_arguments))
            shares.append(share)
            total.add_(grads, alpha=share)
        grads.copy_(total)
        means, weights = _weighted(gathered, shares)
        return means if group is None else group.all_reduce(grads, means, weights)

    def apply_gradients(self, lr: float | Tensor) -> Any:
        """The second half: clip the gradient and take a step; returns its norm before clipping."""
        return self._step({"lr": lr})["grad_norm"]

    def _clip_and_step(self, inputs: Mapping[str, Any]) -> Statistics:
        training, parameters = self.training, self.parameters
        bound, of_all = training.grad_clip, training.grad_clip_by == "global_norm"
        norm = parameters.clip_grad_norm(bound if of_all else None)
        if bound is not None and training.grad_clip_by == "value":
            parameters.grads.clamp_(-bound, bound)
        elif bound is not None and training.grad_clip_by == "norm":
            for parameter in self.module.parameters():
                torch.nn.utils.clip_grad_norm_(parameter, bound)
        self.optimizer.step(inputs["lr"])
        return {"grad_norm": norm}

    def step(
        self,
        rows: Rows,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        *,
        lr: float | Tensor,
        gradient: Gradient | None = None,
    ) -> Statistics:
        """Take one gradient step on one minibatch.

        Gradients are computed for this learner's module alone, not for other networks in the loss,
        such as the critics in a policy's.

        Args:
            loss, gradient: as in `update`.

        Returns:
            The loss's statistics, still on the device, and ``grad_norm``.
        """
        if gradient is None or self._by_autograd:
            gradient = self._gradient_of(loss)
        statistics = gradient(self.module, rows, **loss_arguments)
        return statistics | self._step({"lr": lr})

    def recorded(self, function: Gradient) -> Gradient:
        """The function, on a GPU recorded and replayed if the settings say so; see `CudaGraphs`."""
        return CudaGraphs(function, self.device) if self._records else function

    def _gradient_of(self, loss: Loss) -> Gradient:
        """The gradient of a loss by autograd."""
        if loss in self._gradients:
            return self._gradients[loss]
        changed = loss if self._hook is None else changed_loss(loss, self._hook)
        function = changed
        if self._compile:
            # It warns of all parts that it leaves to Python, as of what makes sequences.
            logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
            function = torch.compile(changed)

        def gradient(module: RLModule, rows: Rows, **arguments: Any) -> Statistics:
            returned = function(module, as_tensors(rows, self.device), **arguments)
            self.parameters.zero_grad()
            try:
                total, statistics = returned
                total.backward(inputs=self._trained)
                return {
                    k: x.detach() if isinstance(x, Tensor) else x for k, x in statistics.items()
                }
            except (TypeError, ValueError, RuntimeError, AttributeError):
                require_loss(returned, f"the loss {loss.__qualname__}")
                raise

        if self._records or self._compile:  # others cost nothing to make anew
            require_lasting(loss, self._gradients)
            self._gradients[loss] = gradient = self.recorded(gradient)
        return gradient

    def _shared(self, gradient: Gradient, group: ProcessGroup) -> Gradient:
        """The gradient of the whole minibatch: the learners of the group compute a part each."""

        def together(module: RLModule, rows: Rows, **arguments: Any) -> Statistics:
            grads = self.parameters.grads
            part, weight = group.part_of(rows)
            statistics = gradient(module, part, **arguments)
            grads.mul_(weight)
            return group.all_reduce(grads, statistics, dict.fromkeys(statistics, weight))

        return together

    def get_weights(self) -> NDArray[np.float32]:
        """A copy of all weights as one vector, float32 ``[P]``."""
        return self.parameters.to_numpy()

    def has_finite_weights(self) -> bool:
        """Whether all weights are finite; buffers aside."""
        return self.parameters.are_finite()

    def get_state(self) -> dict[str, Any]:
        """Optimizer and integer buffers; for the weights see `named_weights`."""
        state, buffers = self.optimizer.get_state(), integer_buffers(self.module)
        return {"kind": self.training.optimizer, "optimizer": state, "buffers": buffers}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`; the state of another kind of optimizer is ignored."""
        if state["kind"] == self.training.optimizer:
            self.optimizer.set_state(state["optimizer"])
        set_integer_buffers(self.module, state.get("buffers", {}))  # none in earlier versions

    def stop(self) -> None:
        """End processes that belong to this learner, if there are any."""

    def named_weights(self) -> dict[str, NDArray[Any]]:
        """Copies of the weights by parameter name, for checkpoints."""
        return self.parameters.named_arrays()

    def load_named_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Load weights by name; raises ValueError if they belong to another model."""
        self.parameters.load_named(weights)


def means_of_rows(by_row: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    """The mean of each statistic ``[M]`` of a minibatch."""
    table = np.array(tuple(by_row.values()), dtype=np.float32)
    return dict(zip(by_row, (table.sum(1) / table.shape[1]).tolist(), strict=True))


def reduced(updates: Sequence[Mapping[str, Tensor | float]]) -> dict[str, float]:
    """One number for each statistic: its mean, the least of ``min_*``, the greatest of ``max_*``.

    Missing numbers and NaN are left out; where there are no others, the result is NaN.

    Args:
        updates: the statistics of each, by name.
    """
    return _weighted(updates, [1.0] * len(updates))[0]


def _weighted(
    updates: Sequence[Mapping[str, Tensor | float]], weights: Sequence[float]
) -> tuple[dict[str, float], dict[str, float]]:
    """As `reduced`, with a weight for each update, and the sum of the weights in each mean."""
    names = [*{name: None for update in updates for name in update}]
    numbers = [update.get(name, math.nan) for update in updates for name in names]
    on_device = [x for x in numbers if isinstance(x, Tensor)]
    try:
        if on_device and len(on_device) == len(numbers):
            table = torch.stack(on_device).cpu().numpy()  # in one transfer
        else:
            table = np.array([float(x) for x in numbers])
        table = table.reshape(len(updates), len(names))
        extremes = [i for i, name in enumerate(names) if name.startswith(EXTREMES)]
    except (TypeError, ValueError, RuntimeError, AttributeError):
        require_numbers(*updates)
        raise
    known = ~np.isnan(table)
    shares = known * np.array(weights, table.dtype)[:, None]
    totals = shares.sum(0)
    with np.errstate(all="ignore"):
        means = (shares * np.where(known, table, 0.0)).sum(0) / totals
    result = dict(zip(names, means.tolist(), strict=True))
    for i in extremes:
        pick = np.fmin if names[i].startswith("min_") else np.fmax
        result[names[i]] = float(pick.reduce(table[:, i]))
    return result, dict(zip(names, totals.tolist(), strict=True))
