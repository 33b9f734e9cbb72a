"""ActorPool: actors that several tests use, as a new process takes seconds to import Ray."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import ray
from pooled_actor import construct, empty
from ray.exceptions import RayError

from rlrun.learning.learner_group import LearnerHost

_FREE_S = 0.5  # that an actor has to become free, before it is killed after all


class ActorPool:
    """Keeps actors that are killed; a later request for their class constructs them anew.

    Actors stay processes of their own, to which all messages are pickled. A process keeps what it
    has imported and registered, and its signal handlers. Learners are never kept: the sockets of
    their process group would stay open.
    """

    def __init__(self) -> None:
        self._made = count()
        self._free: defaultdict[Any, list[tuple[int, Any, Any]]] = defaultdict(list)
        self._taken: dict[int, tuple[Any, int, Any]] = {}
        self._remote, self._kill = ray.remote, ray.kill
        ray.kill = self.kill  # also after `shared`, where fixtures end

    @contextmanager
    def shared(self) -> Iterator[None]:
        """New actors are of this pool."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ray, "remote", self.remote)
            yield

    def remote(self, *decorated: Any, **options: Any) -> Any:
        """`ray.remote`; for classes with options, unless they need resources, from the pool."""
        if decorated or options.get("resources"):
            return self._remote(*decorated, **options)
        return lambda code: _PooledClass(self, code, options)

    def take(self, code: type, options: dict[str, Any], arguments: tuple[Any, ...]) -> Any:
        """A handle of an actor with newly constructed state."""
        options = {**options, "num_cpus": 0}  # unused actors leave all CPUs to others
        key = ray.get_runtime_context().get_node_id(), code, repr(sorted(options.items()))
        free = self._free[key]
        while free:
            number, actor, emptied = free.pop(free.index(min(free)))  # the oldest has imported most
            if _is_free(emptied):
                actor.__ray_call__.remote(construct, *arguments)
                break
            self._kill(actor)
        else:
            number, actor = next(self._made), self._remote(**options)(code).remote(*arguments)
        self._taken[id(actor)] = key, number, actor
        return actor

    def kill(self, actor: Any, **options: Any) -> None:
        """`ray.kill`, which puts an actor of the pool back."""
        if id(actor) not in self._taken:
            self._kill(actor, **options)
            return
        key, number, _ = self._taken.pop(id(actor))
        self._free[key].append((number, actor, actor.__ray_call__.remote(empty)))


class _PooledClass:
    def __init__(self, pool: ActorPool, code: type, options: dict[str, Any]) -> None:
        self._pool, self._code, self._options = pool, code, options
        assert code is not LearnerHost, "a test with learners takes local_ray"

    def remote(self, *arguments: Any) -> Any:
        return self._pool.take(self._code, self._options, arguments)


def _is_free(emptied: Any) -> bool:
    """Whether the process is alive, and has no call left."""
    try:
        return bool(ray.wait([emptied], timeout=_FREE_S)[0]) and ray.get(emptied) is None
    except RayError:
        return False
