"""The actor manager with toy actors."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlrun.actors.actor_manager import FaultTolerantActorManager


class Toy:
    def __init__(self, actor_id: int, recreated: bool) -> None:
        self.actor_id, self.recreated, self.calls = actor_id, recreated, 0

    def ping(self) -> int:
        return self.actor_id

    def count(self, fail: bool = False) -> tuple[int, int]:
        self.calls += 1
        if fail:
            raise ValueError("as ordered")
        return self.actor_id, self.calls

    def wait_for(self, sign: Path, actor_id: int) -> int:
        for _ in range(1000):  # 10 seconds, if the sign never comes
            if actor_id != self.actor_id or sign.exists():
                break
            time.sleep(0.01)
        return self.actor_id

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def was_recreated(self) -> bool:
        return self.recreated


def managed(number: int = 2, **settings: Any) -> FaultTolerantActorManager:
    import ray

    toy: Any = ray.remote(num_cpus=0.1)(Toy)
    return FaultTolerantActorManager(toy.remote, number, **settings)


@pytest.fixture
def manager(shared_actors: None) -> Iterator[Any]:
    made = managed()
    yield made
    made.stop()


def values(results: list[Any]) -> list[Any]:
    return [result.value for result in results]


def test_calls_reach_all_actors_and_results_come_by_id(manager: Any, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    assert manager.actor_ids == manager.healthy_actor_ids == [1, 2]
    assert values(manager.foreach_actor("count")) == [(1, 1), (2, 1)]
    assert values(manager.foreach_actor("count", actor_ids=[2])) == [(2, 2)]
    # An exception of the called code is a result; the actor works on.
    failed = manager.foreach_actor("count", True)
    assert [type(result.error) for result in failed] == [ValueError, ValueError]
    assert not any(result.ok or result.actor_failed for result in failed)
    assert failed[0].error.__cause__ is None
    assert manager.healthy_actor_ids == [1, 2]
    # A call that takes too long is dropped; the others count.
    assert values(manager.foreach_actor("wait_for", sign, 2, timeout_s=1.0)) == [1]
    sign.touch()
    assert manager.add_actor() == 3
    assert values(manager.foreach_actor("ping")) == [1, 2, 3]
    manager.remove_actor(3)
    assert manager.actor_ids == [1, 2]


def test_asynchronous_calls_are_bounded_and_fetched_by_tag(manager: Any, tmp_path: Path) -> None:
    sign = tmp_path / "sign"
    assert manager.foreach_actor_async("wait_for", sign, 2, tag="a") == [1, 2]
    assert manager.foreach_actor_async("ping", tag="b") == []  # one in flight is the limit
    assert manager.num_in_flight() == 2
    assert manager.fetch_ready_async_reqs(tags=["b"], timeout_s=0.0) == []
    assert values(manager.fetch_ready_async_reqs(tags=["a"], timeout_s=20.0)) == [1]
    assert manager.num_in_flight(2) == 1
    assert manager.oldest_call_s(2) > 0 == manager.oldest_call_s(1)
    assert manager.foreach_actor_async("count", tag="b") == [1]
    sign.touch()
    (late,) = manager.fetch_ready_async_reqs(tags=["a"], timeout_s=20.0)
    assert (late.actor_id, late.tag) == (2, "a")
    assert values(manager.fetch_ready_async_reqs(timeout_s=20.0)) == [(1, 1)]
    assert manager.num_in_flight() == 0


def test_results_of_an_actor_come_in_the_order_of_its_calls(
    shared_actors: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    manager = managed(1, max_in_flight=2)
    for tag in ("a", "b"):
        manager.foreach_actor_async("count", tag=tag)
    assert values(manager.foreach_actor("ping")) == [1]  # so both have been answered

    def wait_without_the_oldest(refs: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return refs[1:], refs[:1]

    with monkeypatch.context() as patched:  # as Ray answers while the first result arrives
        patched.setattr(ray, "wait", wait_without_the_oldest)
        assert manager.fetch_ready_async_reqs() == []
    results: list[Any] = []
    while len(results) < 2:  # Ray may tell of the second a moment later
        results += manager.fetch_ready_async_reqs(timeout_s=20.0)
    assert [(result.tag, result.value) for result in results] == [("a", (1, 1)), ("b", (1, 2))]
    manager.stop()


@pytest.mark.faults
def test_a_dead_actor_is_unhealthy_skipped_and_comes_back_with_its_id(local_ray: None) -> None:
    manager = managed(max_restarts=1)
    manager.foreach_actor_async("die", actor_ids=[1], tag="x")
    (result,) = manager.fetch_ready_async_reqs(timeout_s=20.0)
    assert (result.actor_id, result.actor_failed) == (1, True)
    assert manager.healthy_actor_ids == [2]
    assert manager.num_in_flight() == 0
    assert values(manager.foreach_actor("ping")) == [2]
    assert manager.foreach_actor_async("ping", tag="x") == [2]
    assert manager.probe_unhealthy_actors(timeout_s=5.0) == []
    manager.restart(1)
    assert manager.num_restarts == 1
    assert values(manager.foreach_actor("was_recreated")) == [True, False]
    assert manager.foreach_actor_async("ping", actor_ids=[1]) == [1]
    assert not manager.can_restart(1)
    with pytest.raises(RuntimeError, match="restarted 1 times"):
        manager.restart(1)
    manager.stop()


def test_an_actor_that_was_only_suspected_comes_back_by_a_probe(
    manager: Any, tmp_path: Path
) -> None:
    sign = tmp_path / "sign"
    manager.foreach_actor_async("wait_for", sign, 1, actor_ids=[1])
    manager.set_unhealthy(1)
    assert manager.num_in_flight() == 0
    sign.touch()
    assert manager.probe_unhealthy_actors(timeout_s=20.0) == [1]
    assert manager.healthy_actor_ids == [1, 2]
