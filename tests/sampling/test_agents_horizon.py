"""Horizons with several agents: an end for everybody, softly or not; against lists made by hand."""

import gymnasium as gym
import numpy as np
import pytest
from agent_runners import ECHO, EXAMPLES, LSTM, MLP, by_agent, make, played, sample
from scripted_agents import EXPECTED

from rlrun.envs.multi_agent_env import make_multi_agent
from rlrun.sampling import agent_envs
from rlrun.sampling.evaluation import play_episodes

CUT_AT_4 = {  # agent -> (obs, new_obs, reward, t, terminated)
    "a": [(0, 1, 1, 0, False), (1, 2, 1, 1, False), (2, 3, 1, 2, False), (3, 3, 2, 3, False)],
    "b": [(100, 103, 60, 2, False), (103, 104, 1, 3, False)],
    "c": [(203, 204, 1, 3, False)],
}
AFTER_4 = {  # the episode that goes on from there without a reset, in the order of appearance
    "b": [(104, 105, 1, 0, True, False)],
    "c": [(204, 205, 1, 0, False, False), (205, 205, 12, 2, False, True)],
    "a": [(5, 6, 1, 1, False, False), (6, 6, 1, 2, False, True)],
}


def scripted(num_envs=1, **settings):
    return make("scripted_agents:Scripted", {"p": ECHO}, num_envs=num_envs, **settings)


def rows_of(runner, length, fragments):
    replies = [sample(runner, k, length) for k in range(fragments)]
    return by_agent([reply.batch for reply in replies]), [e for r in replies for e in r.episodes]


@pytest.mark.parametrize(("length", "fragments"), [(1, 12), (3, 4), (12, 1)])
def test_a_hard_horizon_truncates_everybody_and_resets(length, fragments):
    rows, episodes = rows_of(scripted(2, horizon=4), length, fragments)
    for env_index in range(2):
        for episode in range(3):
            for index, (agent, expected) in enumerate(CUT_AT_4.items()):
                *before, last = expected
                wanted = [(*row, False) for row in before] + [(*last, True)]
                assert played(rows[env_index, episode, index]) == wanted, agent
    assert {episode.length for episode in episodes} == {4}


@pytest.mark.parametrize(("length", "fragments"), [(1, 14), (5, 3), (7, 2)])
def test_a_soft_horizon_goes_on_without_a_reset_and_without_a_flag(length, fragments):
    rows, episodes = rows_of(scripted(horizon=4, soft_horizon=True), length, fragments)
    for episode in (0, 2):
        for index, (agent, expected) in enumerate(CUT_AT_4.items()):
            assert played(rows[0, episode, index]) == [(*row, False) for row in expected], agent
        for index, (agent, expected) in enumerate(AFTER_4.items()):
            assert played(rows[0, episode + 1, index]) == expected, agent
    assert [episode.length for episode in episodes[:4]] == [4, 3, 4, 3]
    assert episodes[0].seed == episodes[1].seed != episodes[2].seed
    for episode in episodes:
        kept = [r for (_, e, _), rs in rows.items() if e == episode.episode_id & 0xFFFF for r in rs]
        assert episode.episode_return == sum(float(row["rewards"]) for row in kept)


def test_no_done_at_end_makes_every_end_a_truncation():
    rows, _ = rows_of(scripted(no_done_at_end=True), 7, 2)
    for index, agent in enumerate("abc"):
        wanted = [(*row[:4], False, row[4] or row[5]) for row in EXPECTED[agent]]
        assert played(rows[0, 0, index]) == wanted


def test_a_horizon_that_nobody_reaches_changes_nothing():
    (free, _), (limited, _) = rows_of(scripted(), 7, 2), rows_of(scripted(horizon=7), 7, 2)
    assert {key: played(rows) for key, rows in free.items()} == {
        key: played(rows) for key, rows in limited.items()
    }


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(("env", "policy"), [("MultiAgentCartPole", LSTM), ("TakeTurns", MLP)])
def test_a_restored_runner_goes_on_to_the_bit(env, policy, soft, batch_mode):
    def build():
        return make(
            f"{EXAMPLES}:{env}",
            {"p": policy},
            num_envs=2,
            batch_mode=batch_mode,
            horizon=3,
            soft_horizon=soft,
        )

    straight = build()
    for fragment in range(3):
        sample(straight, fragment, 5)
    resumed = build()
    resumed.set_weights(straight.get_weights())
    resumed.set_state(straight.get_state())
    for fragment in range(3, 6):
        one, other = sample(straight, fragment, 5), sample(resumed, fragment, 5)
        assert one.episodes == other.episodes
        for name, column in one.batch["p"].items():
            np.testing.assert_array_equal(column, other.batch["p"][name], name)


def test_a_game_that_is_too_long_to_be_replayed_starts_afresh(monkeypatch, caplog):
    monkeypatch.setattr(agent_envs, "LONGEST_RESTORED", 8)
    env = {"use": f"{EXAMPLES}:TakeTurns", "goal": 1000}
    runners = [make(env, {"p": MLP}, horizon=4, soft_horizon=True) for _ in range(2)]
    sample(runners[0], 0, 10)
    runners[1].set_state(runners[0].get_state())
    assert "fresh episode" in caplog.text
    assert sample(runners[1], 1, 2).batch["p"]["obs"][0, 0] == 1.0, "nothing was added yet"


@pytest.mark.parametrize("soft", [False, True])
def test_evaluation_ends_at_the_horizon(soft):
    runner = scripted(2, horizon=4, soft_horizon=soft)
    episodes = play_episodes(runner, num_episodes=3, seed=1)
    assert [episode.length for episode in episodes] == [4, 4, 4]
    assert {episode.episode_return for episode in episodes} == {5.0 + 61.0 + 1.0}


def short_cart_pole():
    """A cart pole with a time limit of 5 steps."""
    return gym.make("CartPole-v1", max_episode_steps=5)


two_short_cart_poles = make_multi_agent(short_cart_pole)


@pytest.mark.parametrize(("horizon", "longest"), [(None, 5), (4, 4), (8, 8)])
def test_a_time_limit_of_copies_is_raised_to_the_horizon(horizon, longest):
    runner = make(
        "test_agents_horizon:two_short_cart_poles", {"p": MLP}, num_envs=4, horizon=horizon
    )
    reply = sample(runner, 0, 100)
    assert max(episode.length for episode in reply.episodes) == longest
