"""ProcessGroup: learners in several processes that share each minibatch.

Each learner goes through the same minibatches in the same order and computes its part of each; the
sum of the parts' gradients, weighted by their share of the rows, is the gradient of a loss that is
a mean over rows. Owns that division, and the only use of torch.distributed. Knows nothing of Ray.

    M  rows of a minibatch    P  parameters
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from rlrun.data import columns as col
from rlrun.data.column_data import num_rows as count_rows
from rlrun.data.column_data import pick
from rlrun.learning.loaded_batch import Rows

TIMEOUT = timedelta(minutes=10)  # for a learner to arrive where the others wait for it
EXTREMES = ("min_", "max_")
"""How names of statistics begin that are the least or the greatest of something, and no mean."""


class LostPeerError(RuntimeError):
    """A learner was waited for that is not there, or has left the group."""


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
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT
        )

    def leave(self) -> None:
        """Close the connections, also broken ones: others that wait for this learner fail, and
        another group can be joined.
        """
        distributed.destroy_process_group()

    def part_of(self, rows: Rows) -> tuple[Rows, float]:
        """This learner's part of a minibatch, see `part_of_rank`."""
        return part_of_rank(rows, self._rank, self._world_size)

    def all_reduce(
        self, grads: Tensor, statistics: Mapping[str, Tensor | float]
    ) -> dict[str, Tensor]:
        """Replace gradients ``[P]`` by their sum over the learners.

        Returns:
            The sums of the statistics; of those that `EXTREMES` names the least or the greatest,
            where NaN counts only if there is nothing else.
        """
        extremes, summed = dict[str, Tensor | float](), dict[str, Tensor | float]()
        for name, value in statistics.items():
            if name.startswith(EXTREMES):
                extremes[name] = -value if name.startswith("min_") else value
            else:
                summed[name] = value
        sums = self._reduced(torch.cat([grads, _vector(summed, grads)]), distributed.ReduceOp.SUM)
        grads.copy_(sums[: len(grads)])
        result = dict(zip(summed, sums[len(grads) :], strict=True))
        if extremes:
            mine = _vector(extremes, grads)
            greatest = self._reduced(
                mine.where(~mine.isnan(), -torch.inf), distributed.ReduceOp.MAX
            )
            found = greatest.where(greatest > -torch.inf, torch.nan)
            for name, value in zip(extremes, found, strict=True):
                result[name] = -value if name.startswith("min_") else value
        return result

    @_named_errors()
    def _reduced(self, message: Tensor, operation: Any) -> Tensor:
        on_wire = message.cpu() if self._through_cpu else message
        distributed.all_reduce(on_wire, operation)
        return on_wire.to(message.device)


def part_of_rank(rows: Rows, rank: int, world_size: int) -> tuple[Rows, float]:
    """Every ``world_size``-th row, or whole sequences of a recurrent module, and its weight.

    The weight is the part's share of the rows. Of a minibatch with fewer rows or sequences than
    learners each takes everything, with a weight of 1 / ``world_size``: the sum is the same.
    """
    lengths = rows.get(col.SEQ_LENS)
    num_rows = count_rows(rows[col.OBS])
    if (num_rows if lengths is None else len(lengths)) < world_size:
        return rows, 1.0 / world_size
    mine = slice(rank, None, world_size)
    if lengths is None:
        part = {name: pick(column, mine) for name, column in rows.items()}
    else:
        owners = torch.arange(len(lengths), device=lengths.device) % world_size
        steps = (owners == rank).repeat_interleave(lengths)
        part = {
            name: pick(column, mine if _has_a_row_for_each_sequence(name) else steps)
            for name, column in rows.items()
        }
    return part, count_rows(part[col.OBS]) / num_rows


def host_store(host: str, world_size: int) -> TCPStore:
    """The place where learners meet, at a free port of this machine; learner 0 makes it."""
    return TCPStore(host, 0, world_size, is_master=True, timeout=TIMEOUT, wait_for_workers=False)


@_named_errors()
def join_store(host: str, port: int, world_size: int) -> TCPStore:
    """The place that learner 0 made."""
    return TCPStore(host, port, world_size, is_master=False, timeout=TIMEOUT)


def _vector(statistics: Mapping[str, Tensor | float], like: Tensor) -> Tensor:
    numbers = [torch.as_tensor(x) for x in statistics.values()]
    return torch.stack(numbers).to(like) if numbers else like[:0]


def _has_a_row_for_each_sequence(name: str) -> bool:
    return name == col.SEQ_LENS or name.startswith(col.STATE_IN_PREFIX)
