"""LearnerGroup: several learners as Ray actors, which take each gradient step together.

Owns the actors, and what goes to them and comes back. Each has the module and the optimizer, goes
through the same minibatches, and computes its part of each; gradients are summed over all of them
(`ProcessGroup`). So all take the same steps, and end with the same weights as one learner alone, up
to rounding. The group is a learner itself: its own copy of the module, in this process, has the
weights after each update, and computes what the next one needs first (values, advantages).

A learner whose process dies is started again. Each keeps its state from before the running update;
all restore the state of one that survived and repeat the whole update, so that no number changes.
If none survived, or restarts are used up, the run ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.config.problems import keep_traceback
from rlrun.config.schema import LearnersConfig, TrainingConfig
from rlrun.data.seeding import seed_generators
from rlrun.learning.learner import Learner
from rlrun.learning.loaded_batch import Minibatches, Rows, moved_rows
from rlrun.learning.losses import Gradient, Loss, Statistics
from rlrun.learning.process_group import LostPeerError, ProcessGroup, host_store, join_store
from rlrun.policies.rl_module import RLModule

if TYPE_CHECKING:
    from rlrun.actors.actor_manager import CallResult

_log = logging.getLogger(__name__)

_START_TIMEOUT_S = 120.0  # for Ray to find a place for each learner and import torch there


class LearnersError(RuntimeError):
    """A learner could not be started, or its process was lost."""

    exit_code = 1


def build_learner(
    module: RLModule, training: TrainingConfig, settings: LearnersConfig, *, learns: bool = True
) -> Learner:
    """The learner that the `learners` section asks for: one in this process, or a group.

    Args:
        learns: False only keeps the module's weights, in this process.
    """
    kind = LearnerGroup if settings.num_learners and learns else Learner
    return kind(module, training, settings)


class LearnerGroup(Learner):
    """``settings.num_learners`` learners as Ray actors, with the arguments of `Learner`.

    Ray must be running. Losses, and all other arguments of an update, must be picklable.

    Raises:
        LearnersError: Ray found no place for a learner.
    """

    def __init__(
        self, module: RLModule, training: TrainingConfig, settings: LearnersConfig
    ) -> None:
        import ray

        from rlrun.actors.actor_manager import FaultTolerantActorManager

        # Before its parameters become views of one vector.
        self._shipped = ray.put(module), training, settings
        super().__init__(module, training, settings)
        self._unused_optimizer = self.optimizer
        self._theirs = self.get_weights()  # what the learners have
        number = settings.num_learners
        host_class: Any = ray.remote(
            num_cpus=settings.num_cpus_per_learner,
            num_gpus=settings.num_gpus_per_learner,
            max_restarts=0,  # restarts are ours: they restore a state
        )(LearnerHost)
        self._hosts = FaultTolerantActorManager(
            lambda rank, _: host_class.remote(rank, number),
            number,
            max_restarts=settings.max_num_learner_restarts,
            first_id=0,
        )
        self._restarts_before = 0  # of a run that is resumed
        self._require_started()
        self._call("build", *self._shipped)
        self._call("join", self._call("open_store", ranks=[0]))

    @property
    def num_restarts(self) -> int:
        """Learners that were started again so far, also before the run was resumed."""
        return self._restarts_before + self._hosts.num_restarts

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
        """See `Learner.update`; each learner takes its part of every minibatch."""
        import ray

        settings = {"lr": lr, "gradient": gradient, "stop_early": stop_early}
        shipped = ray.put(minibatches.to(torch.device("cpu")))
        arguments = shipped, loss, dict(loss_arguments), settings
        statistics, self._theirs, rng_state = self._improve("update", *arguments)
        self.parameters.load(self._theirs)
        minibatches.rng.bit_generator.state = rng_state  # the learners drew from copies of it
        return dict(statistics)

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
        """See `Learner.accumulate`; each learner takes its part of every microbatch."""
        shipped = [moved_rows(rows, torch.device("cpu")) for rows in microbatches]
        arguments = shipped, num_rows, loss, dict(loss_arguments), {"lr": lr, "gradient": gradient}
        means, self._theirs = self._improve("accumulate", *arguments)
        self.parameters.load(self._theirs)
        return dict(means)

    def apply_gradients(self, lr: float | Tensor) -> Tensor:
        """Not available: the gradients of a group are in its learners."""
        raise TypeError("a LearnerGroup makes its steps in update() or accumulate()")

    def get_state(self) -> dict[str, Any]:
        """The optimizer's state, which is the same in all learners, and the number of restarts."""
        state: dict[str, Any] = self._call("call", "get_state", ranks=[0])
        return {**state, "num_restarts": self.num_restarts}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore all learners from a state of `get_state`, or of a single learner."""
        self._call("call", "set_state", dict(state))
        self._restarts_before = int(state.get("num_restarts", 0)) - self._hosts.num_restarts

    def load_named_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        super().load_named_weights(weights)
        self._call("call", "load_named_weights", dict(weights))
        self._theirs = self.get_weights()

    def stop(self) -> None:
        self._hosts.stop()

    def _improve(self, method: str, *arguments: Any) -> Any:
        """Call a method that takes gradient steps; repeat it after learners were replaced."""
        if self.optimizer is not self._unused_optimizer:
            message = "learners in actors use training.optimizer"
            raise TypeError(f"an optimizer of your own needs learners.num_learners: 0; {message}")
        if not np.array_equal(self.get_weights(), self._theirs):  # as a callback may have done
            self.load_named_weights(self.named_weights())
        seed = int(torch.randint(2**32, ()))  # from this process's generator, which is seeded
        while True:
            self._call("begin", seed)
            results = self._hosts.foreach_actor(method, *arguments)
            if not self._is_repaired(results, go_back=True):
                return results[0].value

    def _call(self, method: str, *arguments: Any, ranks: Sequence[int] | None = None) -> Any:
        """Call all learners, or some, and wait; returns the result of the first of them."""
        while True:
            results = self._hosts.foreach_actor(method, *arguments, actor_ids=ranks)
            if not self._is_repaired(results):
                return results[0].value

    def _is_repaired(self, results: Sequence[CallResult], *, go_back: bool = False) -> bool:
        """Replace learners that were lost in a call; returns whether the call must be repeated.

        Args:
            go_back: restore the state of all learners from before the running update.

        Raises:
            LearnersError: no learner has the state any more, or no restart is left. A learner's own
                errors, such as those of a loss, are raised as they are.
        """
        failed = [result for result in results if not result.ok]
        if not failed:
            return False
        lost = [result for result in failed if result.actor_failed]
        alive = [result for result in failed if not result.actor_failed]
        # Learners that wait for another one fail too, with errors that say less.
        own = [result for result in alive if not isinstance(result.error, LostPeerError)]
        states = self._hosts.foreach_actor("state", go_back) if lost and not own else []
        held = [result.value for result in states if result.ok]
        if not held:
            raise self._ended_by((own or lost or failed)[0])
        lost += [result for result in states if result.actor_failed]
        while lost:
            lost = self._replaced(lost, held[0])
        return True

    def _replaced(self, lost: Sequence[CallResult], state: Mapping[str, Any]) -> list[CallResult]:
        """Start lost learners again and give all this state; returns those lost meanwhile."""
        from rlrun.actors.actor_manager import CallResult

        hosts, ranks = self._hosts, [result.actor_id for result in lost]
        for result in lost:
            if not hosts.can_restart(result.actor_id):
                raise self._ended_by(result)
            _log.warning("%s It is started again, with the state of the others", _failure(result))
        hosts.restart(*ranks)
        self._require_started()
        limit_s = _START_TIMEOUT_S
        built = hosts.foreach_actor("build", *self._shipped, actor_ids=ranks, timeout_s=limit_s)
        opened = hosts.foreach_actor("open_store", actor_ids=[0], timeout_s=limit_s)
        address = opened[0].value if opened else None
        joined = hosts.foreach_actor("join", address, state, timeout_s=limit_s)
        results = {result.actor_id: result for result in (*built, *opened, *joined)}
        late = LearnersError(f"A learner did not answer within {limit_s:.0f} s.")
        each = [results.get(rank, CallResult(rank, error=late)) for rank in hosts.actor_ids]
        return [result for result in each if not result.ok]

    def _require_started(self) -> None:
        import ray

        _, _, settings = self._shipped
        results = self._hosts.foreach_actor("process_id", timeout_s=_START_TIMEOUT_S)
        if len(results) == settings.num_learners:
            return
        free = ray.available_resources()  # type: ignore[no-untyped-call]
        self.stop()
        raise LearnersError(
            f"{len(results)} of {settings.num_learners} learners (learners.num_learners) could be "
            f"started within {_START_TIMEOUT_S:.0f} s. Each needs "
            f"{settings.num_cpus_per_learner:g} CPUs and {settings.num_gpus_per_learner:g} GPUs; "
            f"available are {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs"
        )

    def _ended_by(self, result: CallResult) -> BaseException:
        """End all learners; returns the exception to raise."""
        self.stop()
        return _failure(result)


class LearnerHost:
    """The Ray actor around one learner of a group.

    Args:
        rank: of this learner, from 0.
        num_learners: how many there are.
    """

    def __init__(self, rank: int, num_learners: int) -> None:
        self._rank, self._num_learners = rank, num_learners
        self._store: Any = None
        self._backend = "gloo"
        self._before: dict[str, Any] = {}
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

    def build(self, module: RLModule, training: TrainingConfig, settings: LearnersConfig) -> None:
        """Build this learner, still alone."""
        on_gpu = settings.num_gpus_per_learner > 0
        # Two learners on one GPU cannot talk through NCCL.
        self._backend = "nccl" if settings.num_gpus_per_learner >= 1 else "gloo"
        own = settings.model_copy(update={"device": "cuda" if on_gpu else "cpu"})
        self._learner = Learner(module, training, own)

    def join(self, address: tuple[str, int], state: Mapping[str, Any] | None = None) -> None:
        """Join the other learners, again after one was replaced, and restore a state."""
        learner = self._learner
        self._leave()
        store = self._store or join_store(*address, self._num_learners)
        learner.group = ProcessGroup(self._rank, self._num_learners, store, self._backend)
        if state is not None:
            learner.load_named_weights(state["weights"])
            learner.set_state(state["optimizer"])

    def _leave(self) -> None:
        if self._learner.group is not None:
            self._learner.group.leave()
            self._learner.group = None

    @contextmanager
    def _with_the_others(self) -> Iterator[None]:
        """Leave the group where this learner fails, so that the others do not wait for it."""
        try:
            yield
        except BaseException as error:
            keep_traceback(error)
            self._leave()
            raise

    def begin(self, seed: int) -> None:
        """Before an update: keep the state, and seed this process's global generators."""
        self._before = self.state()
        seed_generators((seed + self._rank) % 2**32)

    def state(self, before: bool = False) -> dict[str, Any]:
        """Weights and the optimizer's state, now or before the last update began."""
        learner = self._learner
        now = {"weights": learner.named_weights(), "optimizer": learner.get_state()}
        return self._before if before else now

    def update(
        self,
        minibatches: Minibatches,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> tuple[dict[str, float], NDArray[np.float32] | None, Mapping[str, Any]]:
        """See `Learner.update`; also returns the weights, of the first learner alone, and the state
        of the minibatches' generator after the update.
        """
        with self._with_the_others():
            on_device = minibatches.to(self._learner.device)
            statistics = self._learner.update(on_device, loss, loss_arguments, **settings)
        return statistics, self._weights(), minibatches.rng.bit_generator.state

    def accumulate(
        self,
        microbatches: list[Rows],
        num_rows: int,
        loss: Loss,
        loss_arguments: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> tuple[dict[str, float], NDArray[np.float32] | None]:
        """See `Learner.accumulate`; also returns the weights, of the first learner alone."""
        moved = (moved_rows(rows, self._learner.device) for rows in microbatches)
        with self._with_the_others():
            means = self._learner.accumulate(moved, num_rows, loss, loss_arguments, **settings)
        return {name: float(value) for name, value in means.items()}, self._weights()

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of a method of `Learner`."""
        return getattr(self._learner, method)(*arguments)

    def _weights(self) -> NDArray[np.float32] | None:
        return self._learner.get_weights() if self._rank == 0 else None


def _failure(result: CallResult) -> BaseException:
    """A learner's exception, or one saying that its process was lost."""
    assert result.error is not None
    if not result.actor_failed:
        return result.error
    return LearnersError(f"learner {result.actor_id} died: {result.death()}")
