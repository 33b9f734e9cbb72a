"""ProcessGroup: learners in several processes that share each minibatch.

Each learner goes through the same minibatches in the same order and computes its part of each; the
sum of the parts' gradients, weighted by their share of the rows, is the gradient of a loss that is
a mean over rows. Owns that division, and the only use of torch.distributed. Knows nothing of Ray.

    M  rows of a minibatch    P  parameters
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from math import nan
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from rlrun.data import columns as col
from rlrun.data.column_data import pick
from rlrun.learning.loaded_batch import Rows, num_rows_of
from rlrun.learning.losses import require_numbers

TIMEOUT = timedelta(minutes=10)  # for a learner to arrive where the others wait for it
EXTREMES = ("min_", "max_")
"""How names of statistics begin that are the least or the greatest of something, and no mean."""


class LostPeerError(RuntimeError):
    """A learner that others wait for is missing, or has left the group."""


@contextmanager
def _named_errors() -> Iterator[None]:
    """torch raises plain RuntimeErrors where connections fail, as losses may do for any reason."""
    try:
        yield
    except RuntimeError as error:
        raise LostPeerError(str(error)) from error


class ProcessGroup:
    """One learner's connection to the others.

    Args:
        rank: of this learner, from 0.
        world_size: number of learners.
        store: where they find each other, from `host_store` or `join_store`.
        backend: "nccl" if each has a GPU to itself, else "gloo".
    """

    @_named_errors()
    def __init__(self, rank: int, world_size: int, store: Store, backend: str) -> None:
        self._rank, self._world_size = rank, world_size
        self._through_cpu = backend == "gloo"
        self._names: list[str] = []  # of the statistics that any learner has reported so far
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT
        )

    def leave(self) -> None:
        """Close the connections, also broken ones: others that wait for this learner fail, and
        another group can be joined.
        """
        # Up to torch 2.6 it holds Python's lock while it waits for a thread that may need the lock
        # to let go of the last tensors.
        time.sleep(0.001)
        distributed.destroy_process_group()

    def part_of(self, rows: Rows) -> tuple[Rows, float]:
        """This learner's part of a minibatch, see `part_of_rank`."""
        return part_of_rank(rows, self._rank, self._world_size)

    def all_reduce(
        self, grads: Tensor, statistics: Mapping[str, Tensor | float], weights: Mapping[str, float]
    ) -> dict[str, Tensor]:
        """Replace gradients ``[P]`` by their sum over the learners.

        Args:
            weights: of this learner's statistics, by name.

        Returns:
            The means of the statistics; of those that `EXTREMES` names the least or the greatest.
            NaN, and what a learner does not report, counts only where there is nothing else.
        """
        own, message = self._message(statistics, weights, grads)
        sums = self._reduced(torch.cat([grads, message]), distributed.ReduceOp.SUM)
        grads.copy_(sums[: len(grads)])
        sums = sums[len(grads) :]
        if sums[-1] > 0.0:  # there are new names: all learners see that here
            require_numbers(statistics)
            self._names = self._joined([*self._names, *statistics])
            own, message = self._message(statistics, weights, grads)
            sums = self._reduced(message, distributed.ReduceOp.SUM)
        names, (totals, shares) = self._names, sums[:-1].chunk(2)
        means = totals / shares
        extremes = [i for i, name in enumerate(names) if name.startswith(EXTREMES)]
        if extremes:
            signs = _vector([-1.0 if names[i].startswith("min_") else 1.0 for i in extremes], grads)
            mine = (signs * own[extremes]).nan_to_num(-torch.inf, torch.inf, -torch.inf)
            greatest = self._reduced(mine, distributed.ReduceOp.MAX)
            means[extremes] = (signs * greatest).where(shares[extremes] > 0.0, nan)
        there = shares.tolist()
        return {
            name: mean
            for name, mean, share in zip(names, means, there, strict=True)
            if share or name in statistics
        }

    def _message(
        self, statistics: Mapping[str, Tensor | float], weights: Mapping[str, float], like: Tensor
    ) -> tuple[Tensor, Tensor]:
        """This learner's numbers by the known names, ``[K]``, NaN where it has none; and what is
        summed, ``[2 K + 1]``: numbers times weights, the weights, and 1 if it has a new name.
        """
        own = _vector([statistics.get(name, nan) for name in self._names], like)
        known = ~own.isnan()
        shares = known * _vector([weights.get(name, 0.0) for name in self._names], like)
        new = _vector([float(not statistics.keys() <= {*self._names})], like)
        return own, torch.cat([shares * own.where(known, 0.0), shares, new])

    @_named_errors()
    def _joined(self, names: Sequence[str]) -> list[str]:
        """The names of all learners, each once."""
        each: list[Any] = [None] * self._world_size
        distributed.all_gather_object(each, names)
        return [*dict.fromkeys(chain.from_iterable(each))]

    @_named_errors()
    def _reduced(self, message: Tensor, operation: Any) -> Tensor:
        on_wire = message.cpu() if self._through_cpu else message
        distributed.all_reduce(on_wire, operation)
        return on_wire.to(message.device)


def part_of_rank(rows: Rows, rank: int, world_size: int) -> tuple[Rows, float]:
    """Every ``world_size``-th row, or whole sequences of a recurrent module, and its weight.

    The weight is the part's share of the rows. With fewer rows or sequences than learners,
    each learner takes all of them with a weight of 1 / ``world_size``: the sum is the same.
    """
    lengths = rows.get(col.SEQ_LENS)
    num_rows = num_rows_of(rows)
    if (num_rows if lengths is None else len(lengths)) < world_size:
        return rows, 1.0 / world_size
    mine = slice(rank, None, world_size)
    if lengths is None:
        part = {name: pick(column, mine) for name, column in rows.items()}
    else:
        owners = torch.arange(len(lengths), device=lengths.device) % world_size
        steps = (owners == rank).repeat_interleave(lengths)
        part = {
            name: pick(column, steps if col.is_countable(name) else mine)
            for name, column in rows.items()
        }
    return part, num_rows_of(part) / num_rows


def host_store(host: str, world_size: int) -> TCPStore:
    """The place where learners meet, at a free port of this machine; learner 0 makes it."""
    return TCPStore(host, 0, world_size, is_master=True, timeout=TIMEOUT, wait_for_workers=False)


@_named_errors()
def join_store(host: str, port: int, world_size: int) -> TCPStore:
    """The place that learner 0 made."""
    return TCPStore(host, port, world_size, is_master=False, timeout=TIMEOUT)


def _vector(numbers: Sequence[Tensor | float], like: Tensor) -> Tensor:
    return torch.stack([torch.as_tensor(x) for x in numbers]).to(like) if numbers else like[:0]
