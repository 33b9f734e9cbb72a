"""What results are made of: statistics of episodes, agents and env runners."""

from time import perf_counter, sleep
from types import SimpleNamespace

import pytest

from rlrun import PPOConfig
from rlrun.algorithms.progress import Progress
from rlrun.algorithms.result import (
    EpisodeStatistics,
    PhaseTimers,
    RunnerStatistics,
    evaluation_result,
    is_wall_clock,
)
from rlrun.sampling.episodes import EpisodeRecord


def records(*returns):
    return [EpisodeRecord(i, 0, 0, float(r), int(r)) for i, r in enumerate(returns)]


def test_before_the_first_episode_numbers_are_none_and_not_nan():
    result = EpisodeStatistics(3).end_iteration()
    assert result["episodes"] == result["episodes_this_iter"] == result["episodes_in_mean"] == 0
    absent = ("episode_return_mean", "episode_return_min", "episode_return_max", "episode_len_mean")
    assert all(result[key] is None for key in absent)
    assert result["episode_return_mean_this_iter"] is None


def test_the_mean_is_over_the_window():
    statistics = EpisodeStatistics(3)
    statistics.add(records(1, 2))
    assert statistics.end_iteration()["episode_return_mean"] == 1.5
    statistics.add(records(6, 7))
    result = statistics.end_iteration()
    assert result["episode_return_mean"] == (2 + 6 + 7) / 3
    assert result["episodes_in_mean"] == 3
    assert result["episode_return_mean_this_iter"] == 6.5
    assert (result["episode_return_min"], result["episode_return_max"]) == (2, 7)
    assert result["episodes"] == 4


def test_more_episodes_than_the_window_in_one_iteration_all_count():
    statistics = EpisodeStatistics(2)
    statistics.add(records(1, 2, 3, 4))
    result = statistics.end_iteration()
    assert result["episodes_in_mean"] == 4
    assert result["episode_return_mean"] == 2.5
    assert statistics.end_iteration()["episode_return_mean"] == 3.5


def test_statistics_of_episodes_and_agents_go_on_with_a_resume():
    statistics, restored = EpisodeStatistics(3), EpisodeStatistics(3)
    agents = (("a", "p", 1.5), ("b", "p", 2.5))
    statistics.add([*records(1, 2), EpisodeRecord(2, 0, 0, 4.0, 4, agents)])
    statistics.end_iteration()
    restored.set_state(statistics.get_state())
    for each in (statistics, restored):
        each.add(records(9))
    assert statistics.end_iteration() == restored.end_iteration()
    for each in (statistics, restored):
        assert each.agent_returns(["p", "q"], ["a", "b"]) == {
            "policy_return_mean": {"p": 2.0, "q": None},
            "policy_return_min": {"p": 1.5, "q": None},
            "policy_return_max": {"p": 2.5, "q": None},
            "agent_return_mean": {"a": 1.5, "b": 2.5},
        }
        assert each.agent_returns(["p"], []) == {}, "with one agent there are no names"


def test_numbers_of_agents_infos_are_averaged_by_policy_and_go_on_with_a_resume():
    statistics, restored = EpisodeStatistics(3), EpisodeStatistics(3)
    agents = (("a", "p", 0.0), ("b", "p", 0.0), ("c", "q", 0.0))
    metrics = {"a": {"x": 1.0, "is_success": 1.0}, "b": {"x": 2.0, "is_success": 0.0}}
    statistics.add([EpisodeRecord(0, 0, 0, 0.0, 1, agents, agent_metrics=metrics)])
    statistics.end_iteration()
    restored.set_state(statistics.get_state())
    restored.end_iteration()
    for each in (statistics, restored):
        assert each.custom_metrics(["p", "q"]) == {
            "policy_x_mean": {"p": 1.5, "q": None},
            "policy_x_min": {"p": 1.0, "q": None},
            "policy_x_max": {"p": 2.0, "q": None},
        }
        assert each.success_rates(["p", "q"]) == {"policy_success_rate": {"p": 0.5, "q": None}}


def test_counts_of_runners_go_on_with_a_resume():
    def replied(runner, faulty, longest):
        return SimpleNamespace(
            runner_index=runner,
            faulty_episodes=faulty,
            longest_running_episode=longest,
            vector_steps=1,
            timings_s=dict.fromkeys(("policy", "env", "other"), 0.0),
        )

    statistics, resumed = RunnerStatistics(None), RunnerStatistics(None)
    assert statistics.result([1, 2])["longest_running_episode"] == 0
    statistics.add(replied(1, 2, 30))
    statistics.add(replied(2, 3, 10))
    resumed.set_state(statistics.get_state())
    resumed.add(replied(1, 4, 5))
    result = resumed.result([1, 2])
    assert (result["faulty_episodes"], result["longest_running_episode"]) == (4 + 3, 10)
    of_one = resumed.result([1])  # the other has gone
    assert (of_one["faulty_episodes"], of_one["longest_running_episode"]) == (4 + 3, 5)
    assert resumed.result([])["longest_running_episode"] == 0  # all have gone


def test_the_keys_of_an_evaluation_do_not_depend_on_whether_it_was_due():
    for named in ((), (["p"], ["a"])):
        due, not_due = (evaluation_result(e, *named) for e in (records(1, 3), None))
        assert due.keys() == not_due.keys()


def test_an_evaluation_has_the_spread_of_its_returns():
    found = evaluation_result(records(1, 5))
    names = ("mean", "std", "min", "max")
    assert [found[f"episode_return_{name}"] for name in names] == [3.0, 2.0, 1.0, 5.0]


def test_the_time_of_a_lap_that_no_phase_counts_is_other():
    begin = perf_counter()
    timers = PhaseTimers()
    with timers.phase("learn"):
        sleep(0.01)
    seconds, wall = timers.lap()
    assert wall <= perf_counter() - begin
    assert seconds["learn_s"] >= 0.01
    assert sum(seconds.values()) == pytest.approx(wall)
    assert 0.0 <= seconds["other_s"] < wall


def test_the_time_of_a_lap_is_known_before_it_ends():
    timers = PhaseTimers()
    sleep(0.01)
    so_far = timers.elapsed()
    assert 0.01 <= so_far <= timers.lap()[1]


def test_a_lap_has_no_phases_of_the_one_before():
    timers = PhaseTimers()
    with timers.phase("learn"):
        pass
    timers.lap()
    assert timers.lap()[0]["learn_s"] == 0.0


def test_the_lag_of_the_policy_is_the_mean_over_fragments_and_the_greatest():
    progress = Progress(PPOConfig().environment("CartPole-v1").experiment())
    replies = [SimpleNamespace(weights_version=version) for version in (7, 4)]
    progress.note_policy_lag(8, replies)
    assert progress.policy_lag == {"policy_lag_mean": 2.5, "policy_lag_max": 4.0}


def test_nothing_is_counted_before_the_first_iteration():
    state = Progress(PPOConfig().environment("CartPole-v1").experiment()).get_state()
    numbers = {name: value for name, value in state.items() if isinstance(value, int | float)}
    assert numbers == dict.fromkeys(numbers, 0)
    assert {"iteration", "env_steps", "time_s"} <= numbers.keys()


def test_wall_clock_keys():
    assert is_wall_clock("timers/sample_s")
    assert is_wall_clock("env_steps_per_s")
    assert is_wall_clock("env_runners/vector_step_env_ms")
    assert not is_wall_clock("env_steps")
    assert not is_wall_clock("env_runners/restarts")


@pytest.mark.parametrize(("coefficient", "expected"), [(None, [8, 6, 4]), (0.5, [4, 4, 2])])
def test_timings_are_plain_or_moving_averages(coefficient, expected):
    statistics = RunnerStatistics(coefficient)
    found = []
    for env_ms in (8, 4, 0):
        reply = SimpleNamespace(
            runner_index=1,
            faulty_episodes=0,
            longest_running_episode=0,
            vector_steps=10,
            timings_s={"policy": 0.0, "env": env_ms / 100, "other": 0.0},
        )
        statistics.add(reply)
        found.append(statistics.result([1])["vector_step_env_ms"])
    assert found == pytest.approx(expected)


class FaultyRunners:
    """A group whose runners have been lost so often in this session."""

    num_healthy, num_in_flight, indices = 1, 0, (1,)

    def __init__(self, died, late, dropped):
        self.lost = died, late, dropped

    def faults(self):
        died, late, dropped = self.lost
        causes = {"died": died, "env_error": 0, "late": late}
        numbers = {"restarts": died + late, "dropped_env_steps": dropped}
        return {**numbers, "restarts_by_cause": causes}


def test_what_runners_lost_before_a_resume_counts_on():
    def made():
        return Progress(PPOConfig().environment("CartPole-v1").experiment())

    def ended(progress, *lost):
        further = {"weights_version": 0, "learners": {}, "evaluation": {}}
        group = FaultyRunners(*lost)
        result = progress.end_iteration(env_runners=group, policies=(), agents=(), **further)
        found = result["env_runners"]
        causes = found["restarts_by_cause"]
        assert causes["env_error"] == 0
        return found["restarts"], causes["died"], causes["late"], found["dropped_env_steps"]

    progress, resumed = made(), made()
    assert ended(progress, 1, 0, 0) == (1, 1, 0, 0)
    assert ended(progress, 1, 2, 50) == (3, 1, 2, 50)
    resumed.set_state(progress.get_state())
    assert ended(resumed, 0, 0, 0) == (3, 1, 2, 50)
    assert ended(resumed, 1, 0, 7) == (4, 2, 2, 57)
    resumed.set_state(progress.get_state())  # in the same session
    assert ended(resumed, 1, 0, 7) == (3, 1, 2, 50)
    assert ended(resumed, 0, 0, 7) == (3, 1, 2, 50), "a runner that was restarted is removed"
