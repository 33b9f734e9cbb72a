"""Stop criteria: any of them, at the bound or above, by a full window."""

import signal

import pytest

from rlrun.config.problems import InputError
from rlrun.experiment.report.numbers import number
from rlrun.experiment.stopping import Interrupts, StopCriteria


def reached(stop, **result):
    criteria = StopCriteria(stop, smoothing_episodes=100)
    return list(criteria.reached(result))


def test_any_at_or_above_stops():
    assert reached({"a": 1, "b": 2}, a=1, b=1) == ["a"]
    assert reached({"a": 1, "b": 2}, a=0.999, b=1) == []
    assert reached({"a": -150}, a=-149.5) == ["a"]
    assert reached({"a": -150}, a=-150.5) == []
    assert reached({"a/b": 3}, a={"b": 3}) == ["a/b"]


@pytest.mark.parametrize("value", [None, float("nan"), "text", True])
def test_values_other_than_numbers_stop_nothing(value):
    assert reached({"a": 0}, a=value) == []


def test_a_mean_return_counts_once_its_window_is_full():
    stop = {"episode_return_mean": 475}
    assert reached(stop, episode_return_mean=500, episodes_in_mean=99) == []
    assert reached(stop, episode_return_mean=500, episodes_in_mean=100) == ["episode_return_mean"]
    nested = {"evaluation/episode_return_mean": 475}
    found = reached(nested, evaluation={"episode_return_mean": 480}, episodes_in_mean=0)
    assert found == ["evaluation/episode_return_mean"]


@pytest.mark.parametrize(
    "key",
    [
        "env_runners/success_rate",
        "env_runners/policy_return_mean/red",
        "env_runners/agent_return_mean/red_1",
        "custom_metrics/n_mean",
        "episode_len_mean",
    ],
)
def test_whatever_is_averaged_over_the_same_episodes_waits_for_the_full_window(key):
    """The first episodes to end are the short ones: with a time limit, those that succeeded."""
    result = {key: 1.0, "episodes_in_mean": 99}
    assert reached({key: 0.9}, **result) == []
    assert reached({key: 0.9}, **result | {"episodes_in_mean": 100}) == [key]


@pytest.mark.parametrize("key", ["evaluation/success_rate", "episode_return_mean_this_iter"])
def test_other_episodes_do_not_wait_for_the_window(key):
    assert reached({key: 0.9}, **{key: 1.0, "episodes_in_mean": 1}) == [key]


def test_an_unknown_key_is_named_with_the_nearest_one():
    criteria = StopCriteria({"learner/kl": 1, "x": 1, "evaluation": 1}, smoothing_episodes=1)
    with pytest.raises(InputError) as caught:
        criteria.check_keys({"x": None, "learners": {"p": {"kl": 0}}, "evaluation": {"n": 1}})
    text = str(caught.value)
    assert "learner/kl: no such result key - did you mean learners/p/kl?" in text
    assert "evaluation: a group, not a number; it has evaluation/n" in text
    assert "stop: x" not in text


@pytest.mark.parametrize(
    "key",
    [
        "env_runners/success_rate",
        "custom_metrics/n_mean",
        "evaluation/success_rate",
        "evaluation/x",
    ],
)
def test_a_key_that_an_episode_or_an_evaluation_may_bring_is_waited_for(key):
    first = {"env_runners": {"healthy": 1}, "custom_metrics": {}, "evaluation": {"episodes": None}}
    criteria = StopCriteria({key: 1}, smoothing_episodes=1)
    criteria.check_keys(first)
    assert not criteria.reached(first)
    assert criteria.missed(first) == [f"{key} unknown of 1"]


@pytest.mark.parametrize(
    "key", ["env_runners/success", "evaluation/episods", "custom/n_mean", "success_rate"]
)
def test_a_key_that_nothing_can_bring_is_an_error(key):
    first = {"env_runners": {"healthy": 1}, "custom_metrics": {}, "evaluation": {"episodes": None}}
    with pytest.raises(InputError, match=f"{key}: no such result key"):
        StopCriteria({key: 1}, smoothing_episodes=1).check_keys(first)


@pytest.mark.parametrize(
    ("counted", "learned", "warned"), [(0, 64, True), (0, 0, False), (64, 64, False)]
)
def test_steps_that_are_learned_from_and_not_counted_are_warned_of(
    caplog, counted, learned, warned
):
    """As with `synchronous_parallel_sample` in place of `Algorithm.sample`: the run may not end."""
    first = {"env_steps": counted, "training_iteration": 1, "agent_steps_trained": learned}
    stop = {"env_steps": 100, "training_iteration": 5}
    StopCriteria(stop, smoothing_episodes=1).check_keys(first)
    said = ["stop.env_steps: the first iteration learned and counted no steps"]
    assert [text.partition(";")[0] for text in caplog.messages] == said * warned


def test_missed_goals_are_listed_without_budgets():
    criteria = StopCriteria({"env_steps": 10, "a": 5, "b": 1, "c": 2}, smoothing_episodes=1)
    assert criteria.missed({"env_steps": 3, "a": 4.5, "b": 1, "c": None}) == [
        "a 4.50 of 5",
        "c unknown of 2",
    ]


def test_a_goal_missed_for_want_of_episodes_says_how_many_there_were():
    criteria = StopCriteria({"episode_return_mean": 10}, smoothing_episodes=100)
    last = {"episode_return_mean": 24.5, "episodes_in_mean": 35}
    assert not criteria.reached(last)
    assert criteria.missed(last) == ["episode_return_mean 24.50 of 10, over 35 of 100 episodes"]


def test_a_missed_goal_in_evaluations_has_the_value_of_the_last_one():
    criteria = StopCriteria({"evaluation/success_rate": 0.9}, smoothing_episodes=1)
    for rate in (0.25, 0.5, None):
        last = {"evaluation": {"success_rate": rate}}
        criteria.reached(last)
    assert criteria.missed(last) == ["evaluation/success_rate 0.5 of 0.9"]


def test_numbers_as_text():
    texts = [number(x) for x in (300000.0, 475, -1.5, 412.534, 0.00012)]
    assert texts == ["300,000", "475", "-1.50", "412.53", "0.00012"]


def test_runs_that_go_on_side_by_side_leave_the_handler_that_was_there():
    before = signal.getsignal(signal.SIGINT)
    first, second = Interrupts(), Interrupts()
    with first:
        second.__enter__()
    second.__exit__()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_run_under_nohup_continues_after_sighup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            interrupts.defer()
            signal.raise_signal(signal.SIGHUP)
            assert not interrupts.look()
            signal.raise_signal(signal.SIGTERM)
            assert interrupts.look()
    finally:
        signal.signal(signal.SIGHUP, before)
