"""Sampling that goes on: overlap, bounds, weights, and what becomes of runners that fail."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runners import FakeRequest, TimedRunner, doubled_count, fake_group, kill

from rlrun.actors.asynchronous import AsynchronousSampler, RoundAhead
from rlrun.actors.env_runner_group import EnvRunnerGroup
from rlrun.actors.remote_runners import EnvRunnersError
from rlrun.checkpoint.state_codec import decode, encode
from rlrun.envs.errors import EnvError


class Requests:
    """Numbers requests, as an algorithm does."""

    def __init__(self) -> None:
        self.sent = 0

    def __call__(self) -> Any:
        self.sent += 1
        return FakeRequest(self.sent - 1, length=1)


timed_group = partial(fake_group, runner_class=TimedRunner)


@pytest.fixture
def make_sampler(shared_actors: None) -> Any:
    used: list[EnvRunnerGroup] = []

    def make(in_flight: int = 1, **options: Any) -> Any:
        used.append(timed_group(max_requests_in_flight_per_env_runner=in_flight))
        requests = Requests()
        return AsynchronousSampler(used[-1], requests, **options), used[-1], requests

    yield make
    for group in used:
        group.stop()


@pytest.fixture
def make_faulty(shared_actors: None, tmp_path: Path) -> Any:
    made: list[EnvRunnerGroup] = []

    def make(behaviour: dict[Any, Any], in_flight: int = 1, **options: Any) -> Any:
        options["max_requests_in_flight_per_env_runner"] = in_flight
        made.append(timed_group(behaviour, tmp_path, **options))
        return AsynchronousSampler(made[-1], Requests()), made[-1]

    yield make
    for group in made:
        group.stop()


def wait_until_done(group: EnvRunnerGroup) -> None:
    """Wait for all that is under way, without fetching it: an actor takes calls in their order."""
    group.foreach_env_runner(lambda runner: runner.ping())


def take_until(sampler: AsynchronousSampler, fragments: set[int], at_least: int) -> list[Any]:
    """Take replies until those of ``fragments`` are there: others may come while one restarts."""
    replies: list[Any] = []
    deadline = time.monotonic() + 60
    while len(replies) < at_least or not fragments <= {reply.fragment for reply in replies}:
        assert time.monotonic() < deadline
        replies.append(sampler.take())
    return replies


def num_under_way(sampler: AsynchronousSampler) -> int:
    """Requests whose replies were not taken, whether they have come or not."""
    return sum(map(len, sampler.get_state()["under_way"].values()))


def test_sampling_goes_on_while_the_learner_learns(make_sampler: Any) -> None:
    sampler, group, _ = make_sampler(2)
    group.foreach_env_runner(lambda runner: runner.spec.behaviour.update(takes_s=0.05))
    sampler.take()
    learning = time.time()
    wait_until_done(group)  # the learner is busy that long, and does not look
    learned = time.time()
    group.foreach_env_runner(lambda runner: runner.spec.behaviour.update(takes_s=0.0))
    replies = [sampler.take() for _ in range(8)]
    assert {reply.runner_index for reply in replies if reply.ended < learned} == {1, 2}
    # The one whose reply was taken was asked again: that request can only have run meanwhile.
    assert [reply for reply in replies if learning < reply.started and reply.ended < learned]


def test_a_slow_learner_makes_the_runners_wait(make_sampler: Any) -> None:
    sampler, group, requests = make_sampler(2, queue_size=3)
    sampler.take()
    while group.num_in_flight:
        sampler.collect(timeout_s=1.0)
    most = 3 + 2 * 2  # what waits, and what was under way when the queue was full
    assert 3 <= num_under_way(sampler) <= most
    assert requests.sent <= 1 + most
    sent = requests.sent
    sampler.collect()
    assert requests.sent == sent  # no request as long as no reply is taken
    for _ in range(6):
        sampler.take()
    assert requests.sent > sent


@pytest.mark.parametrize("in_flight", [1, 2])
def test_each_request_is_answered_once_and_the_limit_holds(
    make_sampler: Any, in_flight: int
) -> None:
    sampler, group, _ = make_sampler(in_flight)
    fragments = []
    for _ in range(20):
        fragments.append(sampler.take().fragment)
        assert group.num_in_flight <= 2 * in_flight
    assert max(Counter(fragments).values()) == 1
    assert set(fragments) <= set(range(20 + 2 * in_flight + 16))


def test_new_weights_reach_requests_that_are_sent_later(make_sampler: Any) -> None:
    sampler, _, _ = make_sampler()
    sampler.set_weights(np.float32(10.0), 1)
    sampler.take()
    sampler.set_weights(np.float32(20.0), 2)
    replies = [sampler.take() for _ in range(8)]
    assert {(r.weights, r.weights_version) for r in replies} == {(10.0, 1), (20.0, 2)}
    assert (replies[-1].weights, replies[-1].weights_version) == (20.0, 2)


def test_without_refill_a_runner_goes_on_only_when_asked_and_with_fresh_weights(
    make_sampler: Any,
) -> None:
    sampler, group, _ = make_sampler(refill=False)
    sampler.set_weights(np.float32(0.0), 0)
    for version in range(1, 8):
        reply = sampler.take()
        wait_until_done(group)
        assert not sampler.get_state()["under_way"][reply.runner_index]  # idle until its turn
        sampler.set_weights(np.float32(version), version)
        sampler.ask(reply.runner_index)
        last = version, reply.runner_index
    replies = [sampler.take(), sampler.take()]
    fresh = next(reply for reply in replies if reply.runner_index == last[1])
    assert (fresh.weights_version, fresh.weights) == (last[0], float(last[0]))


def test_a_task_may_be_more_than_sampling(make_sampler: Any) -> None:
    sampler, group, _ = make_sampler(task=doubled_count)
    replies = [sampler.take() for _ in range(6)]
    for index in (1, 2):
        mine = [reply.batch for reply in replies if reply.runner_index == index]
        assert mine == [2 * (i + 1) for i in range(len(mine))]
    assert sum(state["count"] for state in group.get_states().values()) >= 6


def test_without_remote_runners_it_samples_here() -> None:
    group = timed_group(number=0)
    sampler = AsynchronousSampler(group, Requests())  # type: ignore[arg-type]
    sampler.set_weights(1.0, 1)
    assert sampler.take().weights_version == 1
    sampler.set_weights(2.0, 2)
    reply = sampler.take()
    assert (reply.fragment, reply.weights_version, reply.weights) == (1, 2, 2.0)
    task = AsynchronousSampler(group, Requests(), task=lambda *a: a[1].fragment)  # type: ignore[arg-type]
    assert [task.take(), task.take()] == [0, 1]


@pytest.mark.parametrize("refill", [True, False])
def test_after_a_reset_nothing_old_is_delivered(make_sampler: Any, refill: bool) -> None:
    sampler, group, _ = make_sampler(2, refill=refill)
    sampler.take()
    sampler.reset()
    group.set_states({1: {"count": 100}, 2: {"count": 100}})
    replies = [sampler.take() for _ in range(4)]  # without refill: what each was given at once
    assert min(reply.state["count"] for reply in replies) == 101


def test_what_was_asked_and_not_taken_is_asked_again_with_the_weights_it_had(
    make_sampler: Any,
) -> None:
    sampler, group, _ = make_sampler(2, queue_size=100)  # not full, however fast replies come
    sampler.set_weights(np.float32(1.0), 1)
    taken = [sampler.take() for _ in range(3)]
    sampler.set_weights(np.float32(2.0), 2)
    wait_until_done(group)
    sampler.collect()  # what was asked with the first weights, and asks with these
    taken.append(sampler.take())
    assert num_under_way(sampler) > group.num_in_flight > 0
    saved = decode(*encode([sampler.get_state(), group.get_states()]))
    before = replies_to(saved, sampler)
    group.set_states(saved[1])
    sampler.set_state(saved[0], lambda asked: FakeRequest(**asked))
    after = replies_to(saved, sampler)
    assert {reply.weights_version for reply in after} == {1, 2}
    assert [by_content(reply) for reply in after] == [by_content(reply) for reply in before]
    for index in (1, 2):  # no count twice, none left out
        counts = [r.state["count"] for r in [*taken, *after] if r.runner_index == index]
        assert sorted(counts) == list(range(1, len(counts) + 1))


def replies_to(saved: Any, sampler: AsynchronousSampler) -> list[Any]:
    """The replies to what was under way in this state, by fragment; others may come between."""
    under_way = saved[0]["under_way"].values()
    fragments = {request["fragment"] for requests in under_way for request in requests}
    replies = take_until(sampler, fragments, at_least=len(fragments))
    return sorted((r for r in replies if r.fragment in fragments), key=lambda r: r.fragment)


def by_content(reply: Any) -> tuple[Any, ...]:
    return reply.runner_index, reply.fragment, reply.weights_version, reply.weights, reply.state


def test_restored_requests_keep_to_the_bounds(make_sampler: Any) -> None:
    sampler, group, requests = make_sampler(2, queue_size=3)
    many = [FakeRequest(fragment, weights_version=-1).get_state() for fragment in range(20)]
    under_way = {1: many, 2: []}
    weights = {-1: np.float32(0.0)}
    state = {"weights_version": -1, "weights": weights, "under_way": under_way}
    sampler.set_state(state, lambda asked: FakeRequest(**asked))
    requests.sent = 20
    sampler.take()
    while group.num_in_flight:
        sampler.collect(timeout_s=1.0)
    assert 19 <= num_under_way(sampler) <= 20 + 2 * 2  # the first three of them wait to be taken


@pytest.mark.parametrize("refill", [True, False])
def test_a_runner_of_which_nothing_was_taken_begins_again(make_sampler: Any, refill: bool) -> None:
    sampler, group, _ = make_sampler(refill=refill)
    first = sampler.take()
    other = 3 - first.runner_index
    states = group.get_states()
    assert states == {first.runner_index: {"count": 1}, other: None}
    saved = sampler.get_state()
    wait_until_done(group)
    group.set_states(states)
    sampler.set_state(saved, lambda asked: FakeRequest(**asked))
    reply = sampler.take()
    while reply.runner_index != other:
        reply = sampler.take()
    assert reply.state["count"] == 1


@pytest.mark.faults
def test_silence_ends_the_run_unless_a_new_runner_answers(make_faulty: Any) -> None:
    late = {"sample_timeout_s": 0.5, "number": 1}
    sampler, group = make_faulty({(1, 0): "sleep", "sleep_s": 60.0}, **late)
    assert sampler.take().state == {"count": 1}
    assert group.num_restarts == 1
    sampler, group = make_faulty({"takes_s": 60.0}, **late)
    with pytest.raises(EnvRunnersError, match=r"no answer within .*sample_timeout_s=0\.5"):
        sampler.take()
    assert group.num_restarts == 1


@pytest.mark.faults
def test_an_error_of_the_environment_gets_a_fresh_runner_and_the_same_requests(
    make_faulty: Any,
) -> None:
    sampler, group = make_faulty({(1, 1): "raise", (2, 1): "raise"}, 2)
    fragments = [reply.fragment for reply in take_until(sampler, {1}, at_least=12)]
    assert len(set(fragments)) == len(fragments)
    assert group.num_restarts == 1


@pytest.mark.faults
def test_an_error_that_comes_back_ends_the_run_as_it_was_raised(make_faulty: Any) -> None:
    sampler, group = make_faulty({(1, 0): "always raise"}, number=1)
    with pytest.raises(EnvError, match="KeyError"):
        sampler.take()
    assert group.num_restarts == 1


@pytest.mark.faults
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_killed_runner_comes_back_with_its_state_and_requests(
    make_faulty: Any, in_flight: int
) -> None:
    behaviour = {(i, f): "die" for i in (1, 2) for f in (3, 8)}
    sampler, group = make_faulty(behaviour, in_flight)
    replies = take_until(sampler, {3, 8}, at_least=20)
    assert len({reply.fragment for reply in replies}) == len(replies)
    assert group.num_restarts == 2
    for index in (1, 2):  # no count twice, none left out: each goes on where the dead one stood
        counts = [reply.state["count"] for reply in replies if reply.runner_index == index]
        assert counts == list(range(1, len(counts) + 1))


@pytest.mark.faults
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_runner_that_a_call_of_all_finds_dead_gets_its_requests_again(
    make_faulty: Any, in_flight: int, number: int
) -> None:
    sampler, group = make_faulty({}, in_flight, number=number, sample_timeout_s=5.0)
    replies = [sampler.take() for _ in range(3)]
    kill(group, 1)
    assert group.foreach_env_runner(lambda runner: runner.runner_index) == [1, 2][:number]
    replies += [sampler.take() for _ in range(6)]
    while replies[-1].runner_index != 1:
        replies.append(sampler.take())
    for index in range(1, number + 1):
        counts = [reply.state["count"] for reply in replies if reply.runner_index == index]
        assert counts == list(range(1, len(counts) + 1))
    assert group.faults()["restarts_by_cause"] == {"died": 1, "env_error": 0, "late": 0}


@pytest.mark.faults
def test_a_runner_that_a_call_of_all_finds_dead_takes_part_in_rounds_sampled_ahead(
    make_faulty: Any,
) -> None:
    _, group = make_faulty({}, 2, sample_timeout_s=5.0)
    ahead = RoundAhead(group, Requests(), lambda state: FakeRequest(**state))  # type: ignore[arg-type,return-value]
    ahead.begin([1, 1], None)
    kill(group, 1)
    assert group.foreach_env_runner(lambda runner: runner.runner_index) == [1, 2]
    for fragment in range(3):
        replies = ahead.take([1, 1], [1, 1], None)
        assert replies is not None
        assert [reply.fragment for reply in replies] == [fragment] * 2
        assert [reply.state["count"] for reply in replies] == [fragment + 1] * 2
    assert group.faults()["restarts_by_cause"] == {"died": 1, "env_error": 0, "late": 0}


def test_after_an_interrupt_no_fragment_sampled_ahead_is_lost_or_taken_twice(
    make_sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, group, _ = make_sampler(2)
    ahead = RoundAhead(group, Requests(), lambda state: FakeRequest(**state))  # type: ignore[arg-type,return-value]
    ahead.begin([1, 1], None)

    def interrupted(**_: Any) -> Any:
        raise KeyboardInterrupt

    for round_ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(group.remote.actors, "fetch_ready_async_reqs", interrupted)
            with pytest.raises(KeyboardInterrupt):
                ahead.take([1, 1], [1, 1], None)
        assert ahead.take([1, 1], [1, 1], None) is None
        ahead.begin([1, 1], None)
        replies = ahead.take([1, 1], [1, 1], None)
        assert replies is not None
        assert [reply.state["count"] for reply in replies] == [round_ + 1] * 2
        assert group.num_in_flight == 2


@pytest.mark.faults
def test_a_runner_that_died_before_a_reset_is_replaced(make_faulty: Any) -> None:
    sampler, group = make_faulty({(1, 0): "die"}, number=1)
    sampler.ask(1)
    sampler.reset()
    assert sampler.take().fragment == 1
    assert group.num_restarts == 1


@pytest.mark.faults
def test_a_lost_runner_is_left_out_if_failures_are_ignored(make_faulty: Any) -> None:
    tolerance = {"restart_failed_env_runners": False, "ignore_env_runner_failures": True}
    sampler, group = make_faulty({(1, f): "die" for f in range(6)}, **tolerance)
    deadline = time.monotonic() + 60
    while group.num_healthy == 2:  # until Ray tells that the process is gone
        assert time.monotonic() < deadline
        sampler.take()
    assert {sampler.take().runner_index for _ in range(5)} == {2}
    assert (group.num_healthy, group.num_restarts) == (1, 0)
