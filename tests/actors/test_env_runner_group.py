"""Rounds of sampling, and what becomes of runners that fail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_runners import FakeRequest, fake_group, kill

from rlrun.actors import actor_manager, remote_runners
from rlrun.actors.env_runner_group import EnvRunnerGroup
from rlrun.actors.remote_runners import EnvRunnersError
from rlrun.actors.runner_host import pack
from rlrun.config.problems import user_traceback
from rlrun.data.seeding import Role
from rlrun.envs.errors import EnvError

NO_RESTARTS = {"restart_failed_env_runners": False}
IGNORED = {**NO_RESTARTS, "ignore_env_runner_failures": True}


@pytest.fixture
def make_group(shared_actors: None, tmp_path: Path) -> Any:
    groups: list[EnvRunnerGroup] = []

    def make(behaviour: dict[Any, Any] | None = None, **settings: Any) -> EnvRunnerGroup:
        folder = tmp_path / str(len(groups))
        folder.mkdir()
        groups.append(fake_group(behaviour, folder, **settings))
        return groups[-1]

    yield make
    for group in groups:
        group.stop()


@pytest.fixture(scope="module")
def two_runners(local_ray: None, actor_pool: Any) -> Iterator[EnvRunnerGroup]:
    with actor_pool.shared():
        group = fake_group()
    yield group
    group.stop()


@pytest.fixture
def group(two_runners: EnvRunnerGroup) -> EnvRunnerGroup:
    """Two healthy runners that begin afresh; actors take a second to start."""
    two_runners.set_states({1: None, 2: None})
    return two_runners


def rounds(group: EnvRunnerGroup, number: int, weights: Any = None) -> list[Any]:
    return [
        [
            reply.batch
            for reply in group.sample(FakeRequest(fragment), [2, 3][: group.num_healthy], weights)
        ]  # type: ignore[arg-type]
        for fragment in range(number)
    ]


@pytest.fixture
def undisturbed(group: EnvRunnerGroup) -> Any:
    """So many rounds of runners that do not fail."""
    return partial(rounds, group)


def test_a_local_group_never_imports_ray() -> None:
    group = fake_group(number=0)
    (reply,) = group.sample(FakeRequest(0), [5])  # type: ignore[arg-type]
    assert reply.batch == (0, 5, 5, None, None)
    assert (group.num_healthy, group.num_restarts, group.num_in_flight) == (1, 0, 0)
    group.set_states({0: {"count": 100}})
    assert group.get_states() == {0: {"count": 100}}
    group.set_states({1: {"count": 7}})
    assert group.get_states() == {0: {"count": 0}}


def test_a_round_is_ordered_and_each_runner_gets_its_length_and_the_weights(
    group: EnvRunnerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled: list[Any] = []
    monkeypatch.setattr(remote_runners, "pack", lambda what: pickled.append(what) or pack(what))
    weights = np.arange(4, dtype=np.float32)
    assert rounds(group, 2, weights) == [
        [(1, 2, 2, 6.0, None), (2, 3, 3, 6.0, None)],
        [(1, 4, 2, 6.0, None), (2, 6, 3, 6.0, None)],
    ]
    assert group.get_states() == {1: {"count": 4}, 2: {"count": 6}}
    assert group.foreach_env_runner(lambda runner: runner.runner_index) == [1, 2]
    group.set_states({1: {"count": 10}, 2: {"count": 20}})
    assert group.foreach_env_runner(lambda runner: runner.count) == [10, 20]
    del pickled[:]
    group.sample(FakeRequest(2, length=4), weights=weights)  # type: ignore[arg-type]
    assert len(pickled) == 2  # weights and request, once for both


@pytest.mark.parametrize("known", [{1: {"count": 10}}, {0: {"count": 1}, 1: {"count": 10}}])
def test_runners_that_had_no_state_begin_afresh(
    group: EnvRunnerGroup, known: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rounds(group, 1)
    group.set_states(known)
    assert group.foreach_env_runner(lambda runner: runner.count) == [10, 0]
    assert "env runners 1, 2 continue in place of" in caplog.text


@pytest.mark.faults
def test_an_error_of_the_environment_gets_one_fresh_runner_and_the_same_fragment(
    make_group: Any, undisturbed: Any, caplog: pytest.LogCaptureFixture
) -> None:
    group = make_group({(2, 1): "raise"})
    assert rounds(group, 3) == undisturbed(3)
    assert group.num_restarts == 1
    assert "env runner 2 is restarted: KeyError: 'missing'; step failed: env 'F" in caplog.text
    assert group.foreach_env_runner(lambda runner: runner.recreated) == [False, True]


@pytest.mark.faults
def test_messages_tell_runners_of_evaluation_from_those_of_training(
    make_group: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rounds(make_group({(2, 1): "raise"}, role=Role.EVALUATION), 3)
    assert "evaluation env runner 2 is restarted: " in caplog.text


@pytest.mark.faults
def test_an_error_that_comes_back_at_the_same_place_ends_the_run_as_it_was_raised(
    make_group: Any,
) -> None:
    group = make_group({(1, 1): "always raise"})
    with pytest.raises(EnvError) as caught:
        rounds(group, 2)
    assert type(caught.value) is EnvError
    assert caught.value.__cause__ is None
    assert caught.value.env_step == 7
    assert str(caught.value).startswith("Traceback (most recent call last):")
    assert "ray" not in str(caught.value)
    assert group.num_restarts == 1


def test_without_restarts_the_first_error_ends_the_run(make_group: Any) -> None:
    group = make_group({(1, 0): "raise"}, number=1, **NO_RESTARTS)
    with pytest.raises(EnvError, match="runner 1"):
        rounds(group, 1)


def test_a_bug_outside_of_the_environment_is_never_retried(make_group: Any) -> None:
    group = make_group({(1, 0): "bug"}, number=1)
    with pytest.raises(KeyError, match="a bug of ours"):
        rounds(group, 1)
    assert group.num_restarts == 0


@pytest.mark.parametrize(
    ("what", "error", "last"),
    [("assert", AssertionError, "AssertionError"), ("exit", RuntimeError, "SystemExit: 0")],
)
def test_any_other_error_of_a_runner_brings_its_traceback(
    make_group: Any, what: str, error: type[Exception], last: str
) -> None:
    group = make_group({(1, 0): what}, number=1)
    with pytest.raises(error) as caught:
        rounds(group, 1)
    shown = user_traceback(caught.value)
    assert "in _misbehave" in shown
    assert shown.count("  File ") == shown.count("fake_runners.py") == 2
    assert shown.splitlines()[-1] == last
    assert caught.value.__notes__ == [shown]
    assert group.num_restarts == 0


def test_an_error_in_the_constructor_is_raised_at_once_and_as_it_is(make_group: Any) -> None:
    with pytest.raises(EnvError, match="ValueError: no") as caught:
        make_group({"constructor": 1}, number=1)
    assert caught.value.phase == "constructor"


@pytest.mark.faults
def test_a_late_runner_is_replaced_and_the_data_are_what_they_would_have_been(
    make_group: Any, undisturbed: Any, record_fault: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them at once, too: results do not depend on the clock."""
    late = {(1, 1): "sleep", (2, 1): "sleep", (2, 2): "sleep", "sleep_s": 60.0}
    group = make_group(late, sample_timeout_s=1.0)
    assert rounds(group, 4) == undisturbed(4)
    assert caplog.text.count("fake_runners.py") > 3, "each warning shows where the runner was"
    assert "in _misbehave" in caplog.text
    assert (group.num_restarts, group.num_healthy, group.num_in_flight) == (3, 2, 0)
    assert group.faults() == {
        "restarts": 3,
        "restarts_by_cause": {"died": 0, "env_error": 0, "late": 3},
        "dropped_env_steps": 0,
    }
    record_fault(lost=[group.faults()["dropped_env_steps"]])


@pytest.mark.faults
@pytest.mark.parametrize(
    ("restarts", "settings"), [(1, {}), (0, NO_RESTARTS), (0, {"max_num_env_runner_restarts": 0})]
)
def test_a_runner_that_is_late_again_ends_the_run(
    make_group: Any, restarts: int, settings: dict[str, Any]
) -> None:
    group = make_group(
        {(1, 0): "always sleep", "sleep_s": 60.0},
        number=1,
        sample_timeout_s=0.5,
        **settings,
    )
    with pytest.raises(EnvRunnersError, match=r"sample_timeout_s=0\.5"):
        group.sample(FakeRequest(0))
    assert group.num_restarts == group.faults()["restarts_by_cause"]["late"] == restarts


@pytest.mark.faults
def test_a_late_runner_is_lost_where_failures_are_ignored(make_group: Any) -> None:
    group = make_group(
        {(1, 0): "sleep", "sleep_s": 60.0},
        sample_timeout_s=1.0,
        **IGNORED,
    )
    replies = group.sample(FakeRequest(0), [5, 5])
    assert [reply.runner_index for reply in replies] == [2]
    assert group.faults()["dropped_env_steps"] == 5
    assert group.left_over([5, 5], replies) == [0, 5]


@pytest.mark.faults
def test_a_runner_that_hangs_is_late_for_its_new_state_as_for_a_round(make_group: Any) -> None:
    group = make_group({(1, f): "sleep" for f in (0, 1)} | {"sleep_s": 60.0}, sample_timeout_s=1.0)
    for fragment in (0, 1):
        group.begin(FakeRequest(fragment))
        group.set_states({1: {"count": 10}, 2: {"count": 20}})
        assert group.foreach_env_runner(lambda runner: runner.count) == [10, 20]
    assert group.faults()["restarts_by_cause"]["late"] == 2


@pytest.mark.faults
def test_an_environment_that_fails_while_it_is_restored_costs_one_restart_more(
    make_group: Any,
    undisturbed: Any,
) -> None:
    group = make_group({(1, 1): "raise", "restore": {1: [3, 4]}})
    assert rounds(group, 3) == undisturbed(3)
    assert group.num_restarts == group.faults()["restarts_by_cause"]["env_error"] == 3
    group = make_group({(1, 1): "raise", "restore": {1: [3, 3]}})
    with pytest.raises(EnvError, match="step 3") as caught:
        rounds(group, 2)
    assert caught.value.env_step == 3


def test_a_runner_that_finds_no_place_is_an_error_with_what_lacks(make_group: Any) -> None:
    with pytest.raises(
        EnvRunnersError, match=r"start_timeout_s=0\.5.*0\.1 CPU, 3 torque; available"
    ) as caught:
        make_group(env_runner_start_timeout_s=0.5, custom_resources_per_env_runner={"torque": 3})
    assert "0 torque" in str(caught.value)


def test_a_runner_that_finds_no_place_since_ray_has_ended_says_so(
    make_group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun.actors.remote_runners.node_resources", lambda: iter(()))
    with pytest.raises(EnvRunnersError, match="Ray has ended: its raylet process was killed"):
        make_group(env_runner_start_timeout_s=0.1, custom_resources_per_env_runner={"torque": 3})


@pytest.mark.faults
def test_a_killed_runner_comes_back_and_the_data_are_what_they_would_have_been(
    make_group: Any,
    undisturbed: Any,
) -> None:
    group = make_group({(1, 1): "die", (2, 2): "die"})
    assert rounds(group, 4) == undisturbed(4)
    assert (group.num_restarts, group.num_healthy, group.num_in_flight) == (2, 2, 0)


@pytest.mark.faults
@pytest.mark.parametrize(("settings", "counts"), [({}, [10, 20]), (IGNORED, [20])])
def test_a_runner_that_died_between_rounds_is_replaced_or_left_out(
    make_group: Any, settings: dict[str, Any], counts: list[int]
) -> None:
    group = make_group(**settings)
    rounds(group, 1)
    kill(group, 1)
    group.set_states({1: {"count": 10}, 2: {"count": 20}})
    assert group.foreach_env_runner(lambda runner: runner.count) == counts
    assert (group.num_restarts, group.num_healthy) == (len(counts) - 1, len(counts))


def test_what_a_call_changes_between_rounds_is_in_the_states_of_runners(
    group: EnvRunnerGroup,
) -> None:
    rounds(group, 1)
    group.foreach_env_runner(lambda runner: setattr(runner, "count", 10 * runner.runner_index))
    assert group.get_states() == {1: {"count": 10}, 2: {"count": 20}}
    assert [reply.batch[1] for reply in group.sample(FakeRequest(1))] == [12, 22]


def test_a_call_in_the_middle_of_a_round_leaves_states_as_they_were_taken(
    group: EnvRunnerGroup,
) -> None:
    rounds(group, 1)
    before = group.get_states()
    under_way = group.begin(FakeRequest(1))
    group.foreach_env_runner(lambda runner: setattr(runner, "count", 10 * runner.runner_index))
    assert group.get_states() == before
    assert len(under_way.replies()) == 2


@pytest.mark.faults
def test_a_runner_that_died_in_a_round_that_was_given_up_is_replaced(make_group: Any) -> None:
    group = make_group({(1, 0): "die"})
    group.begin(FakeRequest(0))
    deadline, fragment = time.monotonic() + 60, 0
    while group.num_restarts == 0:  # until Ray tells that the process is gone
        assert time.monotonic() < deadline
        fragment += 1
        replies = group.sample(FakeRequest(fragment))
    assert [reply.runner_index for reply in replies] == [1, 2]


@pytest.mark.faults
def test_a_lost_runner_comes_back_when_the_group_is_resized(make_group: Any) -> None:
    group = make_group({(1, 1): "die"}, **IGNORED)
    rounds(group, 2)
    assert group.num_healthy == 1
    group.resize(1)
    assert [reply.batch[:2] for reply in group.sample(FakeRequest(2))] == [(1, 4)]


@pytest.mark.faults
def test_a_restarted_runner_gets_the_statistics_that_were_sent_before(make_group: Any) -> None:
    group = make_group({(1, 1): "die"}, number=1)
    group.sample(FakeRequest(0, connector_state={"n": 3}))
    (reply,) = group.sample(FakeRequest(1))
    assert reply.batch[-1] == {"n": 3}


@pytest.mark.faults
def test_an_ignored_failure_loses_the_runner_and_nothing_else(make_group: Any) -> None:
    group = make_group({(1, 1): "die"}, **IGNORED)
    assert [len(replies) for replies in (group.sample(FakeRequest(f)) for f in range(3))] == [
        2,
        1,
        1,
    ]
    assert group.num_healthy == 1


@pytest.mark.faults
def test_a_death_that_nothing_covers_ends_the_run(make_group: Any) -> None:
    group = make_group({(1, 0): "die"}, **NO_RESTARTS)
    with pytest.raises(EnvRunnersError, match="env runner 1 died"):
        group.sample(FakeRequest(0))
    group = make_group({(1, 0): "die"}, max_num_env_runner_restarts=0)
    with pytest.raises(EnvRunnersError, match="env runner 1 died"):
        group.sample(FakeRequest(0))


@pytest.mark.faults
@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("die", EnvRunnersError, "env runner [12] died"),
        ("raise", EnvError, "^Traceback"),
        ("sleep", EnvRunnersError, r"no answer within .*sample_timeout_s=1"),
    ],
)
def test_the_loss_of_the_last_runner_is_not_ignored(
    make_group: Any, what: str, error: type[Exception], message: str
) -> None:
    behaviour = {(1, 0): what, (2, 0): what, "sleep_s": 60.0}
    group = make_group(behaviour, **IGNORED, sample_timeout_s=1.0)
    with pytest.raises(error, match=message):
        group.sample(FakeRequest(0))
    with pytest.raises(EnvRunnersError, match="no env runner is left"):
        group.sample(FakeRequest(1))


@pytest.mark.faults
@pytest.mark.parametrize("state", [{}, {1: {"count": 10}, 2: {"count": 20}}])
def test_after_a_round_that_was_given_up_runners_go_on_as_if_it_had_not_been_asked_for(
    make_group: Any, monkeypatch: pytest.MonkeyPatch, state: Any
) -> None:
    group = make_group({(1, 0): "sleep", "sleep_s": 2.0})
    group.set_states(state)
    begun, fetch = group.begin(FakeRequest(0)), group.remote.actors.fetch_ready_async_reqs
    calls: list[Any] = []

    def fetched(**given: Any) -> Any:
        if calls:
            raise KeyboardInterrupt
        calls.append(given)
        return fetch(**given)

    with monkeypatch.context() as patch:
        patch.setattr(group.remote.actors, "fetch_ready_async_reqs", fetched)
        with pytest.raises(KeyboardInterrupt):
            begun.replies()  # of the second runner, then no more
    assert group.num_in_flight == 1
    replies = group.sample(FakeRequest(1))
    counts = [state.get(index, {"count": 0})["count"] + 2 for index in (1, 2)]
    assert [reply.batch[:2] for reply in replies] == list(zip((1, 2), counts, strict=True))
    assert group.num_restarts == 0


@pytest.mark.faults
def test_a_restart_waits_as_long_as_the_settings_say(
    make_group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    group = make_group({(1, 0): "die"}, number=1, delay_between_env_runner_restarts_s=123.0)
    monkeypatch.setattr(actor_manager.time, "sleep", slept.append)
    group.sample(FakeRequest(0))
    assert slept.count(123.0) == 1


@pytest.mark.faults
def test_a_runner_that_is_not_restored_in_time_ends_the_run(make_group: Any) -> None:
    slow = {(1, 1): "die", "restore_s": 30.0}
    group = make_group(slow, number=1, env_runner_restore_timeout_s=0.5)
    with pytest.raises(EnvRunnersError, match=r"env_runner_restore_timeout_s=0\.5"):
        rounds(group, 2)
