"""LearnerGroup: several learners as Ray actors, which together make the steps of one.

Owns the actors, and what goes to them and comes back. Each has the module and the optimizer, goes
through the same minibatches, and computes its part of each; gradients are summed over all of them
(`ProcessGroup`). So all make the same steps, and end with the same weights as one learner alone, up
to rounding. The group is a learner itself: its own copy of the module, in this process, has the
weights after each update, and computes what an update needs before it (values, advantages).

A learner that is lost ends the run: which of its steps the others had made is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.config.schema import LearnersConfig, TrainingConfig
from rlrun.data.seeding import seed_generators
from rlrun.learning.learner import Gradient, Learner, Loss
from rlrun.learning.loaded_batch import Minibatches, Rows
from rlrun.learning.process_group import ProcessGroup, host_store, join_store
from rlrun.policies.rl_module import RLModule

if TYPE_CHECKING:
    from rlrun.actors.actor_manager import CallResult

_START_TIMEOUT_S = 120.0  # for Ray to find a place for each learner and import torch there


class LearnersError(RuntimeError):
    """A learner could not be started, or its process was lost."""

    exit_code = 1


def build_learner(module: RLModule, training: TrainingConfig, settings: LearnersConfig) -> Learner:
    """The learner that the `learners` section asks for: one in this process, or a group."""
    kind = LearnerGroup if settings.num_learners else Learner
    return kind(module, training, settings)


class LearnerGroup(Learner):
    """``settings.num_learners`` learners as Ray actors, with the arguments of `Learner`.

    Ray must be running. Losses, and all other arguments of an update, must be picklable.

    Raises:
        LearnersError: Ray found no place for a learner.
    """

    def __init__(
        self,
        module: RLModule,
        training: TrainingConfig,
        settings: LearnersConfig,
    ) -> None:
        import ray

        from rlrun.actors.actor_manager import FaultTolerantActorManager

        shipped = ray.put(module)  # before its parameters become views of one vector
        super().__init__(module, training, settings)
        number = settings.num_learners
        host_class: Any = ray.remote(
            num_cpus=settings.num_cpus_per_learner,
            num_gpus=settings.num_gpus_per_learner,
            max_restarts=0,
        )(LearnerHost)
        self._hosts = FaultTolerantActorManager(
            lambda rank, _: host_class.remote(rank, number), number, first_id=0
        )
        self._require_started(settings)
        address = self._call("open_store", ranks=[0])
        self._call("build", shipped, training, settings, address)

    def update(
        self,
        minibatches: Minibatches,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        *,
        lr: float,
        gradient: Gradient | None = None,
        stop_early: Callable[[dict[str, Tensor]], bool] | None = None,
    ) -> dict[str, float]:
        """See `Learner.update`; each learner takes its part of every minibatch."""
        import ray

        settings = {"lr": lr, "gradient": gradient, "stop_early": stop_early}
        shipped = ray.put(minibatches.to(torch.device("cpu")))
        self._call("seed", _drawn_seed())
        statistics, weights = self._call("update", shipped, loss, dict(loss_arguments), settings)
        self.parameters.load(weights)
        return dict(statistics)

    def accumulate(
        self,
        microbatches: Iterable[Rows],
        num_rows: int,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        *,
        lr: float,
    ) -> dict[str, Tensor]:
        """See `Learner.accumulate`; each learner takes its part of every microbatch."""
        shipped = [{name: column.cpu() for name, column in rows.items()} for rows in microbatches]
        self._call("seed", _drawn_seed())
        means, weights = self._call("accumulate", shipped, num_rows, loss, dict(loss_arguments), lr)
        self.parameters.load(weights)
        return {name: value.to(self.device) for name, value in means.items()}

    def apply_gradients(self, lr: float) -> Tensor:
        """Not available: the gradients of a group are in its learners."""
        raise TypeError("a LearnerGroup makes its steps in update() or accumulate()")

    def get_state(self) -> dict[str, Any]:
        """The optimizer's state, which is the same in all learners."""
        state: dict[str, Any] = self._call("call", "get_state", ranks=[0])
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore all learners from a state of `get_state`."""
        self._call("call", "set_state", dict(state))

    def load_named_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Take over weights by name; raises ValueError if they belong to another model."""
        super().load_named_weights(weights)
        self._call("call", "load_named_weights", dict(weights))

    def stop(self) -> None:
        """End the learners' processes."""
        self._hosts.stop()

    def _call(self, method: str, *arguments: Any, ranks: Iterable[int] | None = None) -> Any:
        """Call all learners (or some) at once, and wait; the result of the first of them."""
        results = self._hosts.foreach_actor(method, *arguments, actor_ids=ranks)
        # Learners that wait for a dead one fail too, with errors that say less.
        for result in sorted(results, key=lambda result: not result.actor_failed):
            if result.error is not None:
                self.stop()
                raise _failure(result)
        return results[0].value

    def _require_started(self, settings: LearnersConfig) -> None:
        import ray

        results = self._hosts.foreach_actor("process_id", timeout_s=_START_TIMEOUT_S)
        if len(results) == settings.num_learners and all(result.ok for result in results):
            return
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        self.stop()
        raise LearnersError(
            f"{sum(result.ok for result in results)} of {settings.num_learners} learners could be "
            f"started within {_START_TIMEOUT_S:.0f} s. Each needs "
            f"{settings.num_cpus_per_learner:g} CPUs and {settings.num_gpus_per_learner:g} GPUs; "
            f"free are {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs"
        )


class LearnerHost:
    """The Ray actor around one learner of a group.

    Args:
        rank: of this learner, from 0.
        num_learners: how many there are.
    """

    def __init__(self, rank: int, num_learners: int) -> None:
        self._rank, self._num_learners = rank, num_learners
        self._store: Any = None
        self._learner: Learner

    def process_id(self) -> int:
        """The id of this process; returns as soon as it runs."""
        return os.getpid()

    def open_store(self) -> tuple[str, int]:
        """Make the store where the learners meet; returns its host and port."""
        import ray

        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        store = host_store(host, self._num_learners)
        self._store = store
        return host, int(store.port)

    def build(
        self,
        module: RLModule,
        training: TrainingConfig,
        settings: LearnersConfig,
        address: tuple[str, int],
    ) -> None:
        """Join the other learners and build this one."""
        on_gpu = settings.num_gpus_per_learner > 0
        # Two learners on one GPU cannot talk through NCCL.
        backend = "nccl" if settings.num_gpus_per_learner >= 1 else "gloo"
        store = self._store or join_store(*address, self._num_learners)
        own = settings.model_copy(update={"device": "cuda" if on_gpu else "cpu"})
        group = ProcessGroup(self._rank, self._num_learners, store, backend)
        self._learner = Learner(module, training, own, group=group)

    def seed(self, seed: int) -> None:
        """Seed the global generators of this process, for each learner differently."""
        seed_generators((seed + self._rank) % 2**32)

    def update(
        self,
        minibatches: Minibatches,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> tuple[dict[str, float], NDArray[np.float32] | None]:
        """See `Learner.update`; with the weights, if this is the first learner."""
        on_device = minibatches.to(self._learner.device)
        statistics = self._learner.update(on_device, loss, loss_arguments, **settings)
        return statistics, self._weights()

    def accumulate(
        self,
        microbatches: list[Rows],
        num_rows: int,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        lr: float,
    ) -> tuple[dict[str, Tensor], NDArray[np.float32] | None]:
        """See `Learner.accumulate`; with the weights, if this is the first learner."""
        device = self._learner.device
        moved = ({name: col.to(device) for name, col in rows.items()} for rows in microbatches)
        means = self._learner.accumulate(moved, num_rows, loss, loss_arguments, lr=lr)
        return {name: value.cpu() for name, value in means.items()}, self._weights()

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of `Learner`."""
        return getattr(self._learner, method)(*arguments)

    def _weights(self) -> NDArray[np.float32] | None:
        return self._learner.get_weights() if self._rank == 0 else None


def _drawn_seed() -> int:
    """A seed for learners' processes, drawn from this process's generator, which is seeded."""
    return int(torch.randint(2**32, ()))


def _failure(result: CallResult) -> BaseException:
    """The exception of a learner, or one that says that its process was lost."""
    assert result.error is not None
    if not result.actor_failed:
        return result.error
    text = " ".join(str(result.error).split()).rpartition("Worker exit detail: ")[2]
    return LearnersError(f"learner {result.actor_id} died: {text}")
