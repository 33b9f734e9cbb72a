"""What learners that share each minibatch take of it, and what they add up.

Each learner goes through the same minibatches in the same order and computes its part of each; the
sum of the parts' gradients, weighted by their share of the rows, is the gradient of a loss that is
a mean over rows. Owns that division, and the only use of torch.distributed. Knows nothing of Ray.

    M  rows of a minibatch    P  parameters
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from rlrun.data import columns as col
from rlrun.policies.rl_module import RLModule

Rows = dict[str, Tensor]
Gradient = Callable[..., dict[str, Tensor]]

TIMEOUT = timedelta(minutes=10)  # for a learner to arrive where the others wait for it


class Peers:
    """One of several learners, each in a process of its own.

    Args:
        rank: of this learner, from 0.
        num_learners: how many there are.
        store: where they find each other; `host_store` makes it, `join_store` reaches it.
        backend: "nccl" if each has a GPU to itself, else "gloo".
    """

    def __init__(self, rank: int, num_learners: int, store: Store, backend: str) -> None:
        self._rank, self._num_learners = rank, num_learners
        self._through_cpu = backend == "gloo"
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=num_learners, timeout=TIMEOUT
        )

    def part_of(self, rows: Rows) -> tuple[Rows, float]:
        """Every ``num_learners``-th row, or whole sequences of a recurrent module.

        Of a minibatch with fewer rows or sequences than learners each takes everything, with a
        weight of 1 / ``num_learners``: nobody is left without, and the sum is the same.
        """
        lengths = rows.get(col.SEQ_LENS)
        num_rows = len(rows[col.OBS])
        if (num_rows if lengths is None else len(lengths)) < self._num_learners:
            return rows, 1.0 / self._num_learners
        mine = slice(self._rank, None, self._num_learners)
        if lengths is None:
            part = {name: column[mine] for name, column in rows.items()}
        else:
            owners = torch.arange(len(lengths), device=lengths.device) % self._num_learners
            steps = (owners == self._rank).repeat_interleave(lengths)
            part = {
                name: column[mine] if _has_a_row_for_each_sequence(name) else column[steps]
                for name, column in rows.items()
            }
        return part, len(part[col.OBS]) / num_rows

    def shared(self, gradient: Gradient, grads: Tensor) -> Gradient:
        """A gradient that all learners compute together, each from its part of the rows.

        Args:
            grads: where ``gradient`` leaves what it computes, ``[P]``.
        """

        def together(module: RLModule, rows: Rows, **arguments: Any) -> dict[str, Tensor]:
            part, weight = self.part_of(rows)
            statistics = gradient(module, part, **arguments)
            grads.mul_(weight)
            return self.add_up(grads, {name: x * weight for name, x in statistics.items()})

        return together

    def add_up(self, grads: Tensor, statistics: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Replace gradients ``[P]`` by their sum over the learners; the sums of the statistics."""
        scalars = torch.stack(list(statistics.values())).to(grads)
        message = torch.cat([grads, scalars])
        if self._through_cpu:
            message = message.cpu()
        distributed.all_reduce(message)
        message = message.to(grads.device)
        grads.copy_(message[: len(grads)])
        return dict(zip(statistics, message[len(grads) :], strict=True))


def host_store(host: str, num_learners: int) -> TCPStore:
    """The place where learners meet, at a free port of this machine; learner 0 makes it."""
    return TCPStore(host, 0, num_learners, is_master=True, timeout=TIMEOUT, wait_for_workers=False)


def join_store(host: str, port: int, num_learners: int) -> TCPStore:
    """Reach the place that learner 0 made."""
    return TCPStore(host, port, num_learners, is_master=False, timeout=TIMEOUT)


def _has_a_row_for_each_sequence(name: str) -> bool:
    return name == col.SEQ_LENS or name.startswith(col.STATE_IN_PREFIX)
