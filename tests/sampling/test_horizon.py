"""Horizons end episodes as truncations, softly or not, with one agent or several."""

import gymnasium as gym
import numpy as np
import pytest
from agent_runners import ECHO, MLP, by_agent, make, played, sample
from counting_envs import CountingEnv, collect, counting_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_agents import EXPECTED

from rlrun.config.batch_arithmetic import fragment_lengths
from rlrun.config.problems import ConfigError
from rlrun.config.schema import ConnectorsConfig, EnvRunnersConfig, EnvSpec
from rlrun.connectors.rewards import RewardPipeline
from rlrun.envs.multi_agent_env import make_multi_agent
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import run_episodes
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest


def limited(num_envs=1, *, use="counting_envs:CountingEnv", env=None, **settings):
    return EnvRunner(counting_spec(num_envs, use=use, settings=settings, **(env or {})))


def test_a_hard_horizon_truncates_and_resets():
    reply = collect(limited(env={"length": 9}, horizon=4), [10])[0]
    batch = reply.batch
    assert batch["t"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert np.flatnonzero(batch["truncateds"]).tolist() == [3, 7]
    assert not batch["terminateds"].any()
    assert batch["obs"][4, 1] == 0, "the environment was reset"
    assert batch["new_obs"][3, 1] == 4, "the final observation is there to bootstrap from"
    assert [episode.length for episode in reply.episodes] == [4, 4]


@pytest.mark.parametrize("use", ["counting_envs:CountingEnv", "FourSteps-v0"])
def test_a_horizon_can_terminate_even_where_a_time_limit_is(use):
    gym.register("FourSteps-v0", CountingEnv, max_episode_steps=4, kwargs={"length": 9})
    try:
        runner = limited(use=use, env={"length": 9}, horizon=4, horizon_terminates=True)
        reply = collect(runner, [10])[0]
    finally:
        del gym.registry["FourSteps-v0"]
    assert np.flatnonzero(reply.batch["terminateds"]).tolist() == [3, 7]
    assert not reply.batch["truncateds"].any()
    assert [episode.length for episode in reply.episodes] == [4, 4]


def test_an_end_of_the_environments_own_goes_first():
    batch = collect(limited(env={"length": 4}, horizon=4), [8])[0].batch
    assert np.flatnonzero(batch["terminateds"]).tolist() == [3, 7]
    assert not batch["truncateds"].any()
    unlimited = collect(limited(env={"length": 3}), [8])[0].batch
    longer = collect(limited(env={"length": 3}, horizon=99), [8])[0].batch
    for name in unlimited:
        np.testing.assert_array_equal(longer[name], unlimited[name])


def test_a_soft_horizon_begins_a_new_episode_on_the_running_environment():
    runner = limited(env={"length": 9}, horizon=4, soft_horizon=True)
    first, second = collect(runner, [6, 6])
    t = [*first.batch["t"], *second.batch["t"]]
    assert t == [0, 1, 2, 3, 0, 1, 2, 3, 0, 0, 1, 2]
    steps = [*first.batch["obs"][:, 1], *second.batch["obs"][:, 1]]
    assert steps == [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 1, 2], "no reset before the ninth step"
    flags = np.concatenate([reply.batch["terminateds"] for reply in (first, second)])
    assert np.flatnonzero(flags).tolist() == [8]
    assert not first.batch["truncateds"].any()
    assert len(np.unique(first.batch["eps_id"])) == 2
    lengths = [episode.length for reply in (first, second) for episode in reply.episodes]
    assert lengths == [4, 4, 1]
    returns = [episode.episode_return for reply in (first, second) for episode in reply.episodes]
    assert returns == [1 + 2 + 3 + 4, 5 + 6 + 7 + 8, 9]


def test_rewards_are_normalised_by_returns_that_begin_again_at_a_soft_horizon():
    more = {"connectors": ConnectorsConfig(normalize_rewards=True), "gamma": 0.9}
    cut = {"horizon": 4, "soft_horizon": True}
    runner = EnvRunner(counting_spec(1, settings=cut, more=more, length=9))
    learned = collect(runner, [9])[0].batch["rewards"]
    pipeline = RewardPipeline(clip=False, normalize=True, gamma=0.9)
    returns, never = np.zeros(1), np.zeros(1, np.bool_)
    for i, reward in enumerate(range(1, 10)):
        expected = pipeline(np.array([float(reward)]), never, never, returns)
        assert learned[i] == expected[0]
        returns[:] = 0.0 if i in (3, 7) else returns


def test_no_done_at_end_makes_every_end_a_truncation():
    batch = collect(limited(env={"length": 3}, no_done_at_end=True), [7])[0].batch
    assert not batch["terminateds"].any()
    assert np.flatnonzero(batch["truncateds"]).tolist() == [2, 5]
    assert batch["t"].tolist() == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("soft", [False, True])
def test_a_time_limit_below_the_horizon_is_raised_to_it(soft):
    class Endless(CountingEnv):
        """Ends by its time limit alone."""

    gym.register("Endless-v0", lambda: Endless(length=10**6), max_episode_steps=5)
    try:
        runner = limited(use="Endless-v0", horizon=8, soft_horizon=soft)
        batch = collect(runner, [20])[0].batch
    finally:
        del gym.registry["Endless-v0"]
    assert batch["t"].tolist() == [*range(8), *range(8), *range(4)]
    assert batch["truncateds"].any() != soft
    assert (batch["obs"][8, 1] == 8) == soft


def test_evaluation_ends_at_the_horizon_too():
    runner = limited(env={"length": 99}, horizon=7)
    episodes = run_episodes(runner, range(3), seed=1)
    assert [episode.length for episode in episodes] == [7, 7, 7]


def test_an_environment_that_resets_itself_cannot_be_cut_short():
    with pytest.raises(ConfigError, match=r"env_runners\.horizon: .* cannot reset one"):
        limited(2, use="counting_envs:autonomous", horizon=3)


@settings(max_examples=60)
@given(
    runners=st.integers(0, 3),
    num_envs=st.integers(1, 3),
    length=st.one_of(st.just("auto"), st.integers(1, 8)),
    rounds=st.integers(1, 2),
    mode=st.sampled_from(["truncate_episodes", "complete_episodes"]),
    horizon=st.one_of(st.none(), st.integers(1, 6)),
    soft=st.booleans(),
    no_done=st.booleans(),
)
def test_counts_are_exact_in_every_combination(
    runners, num_envs, length, rounds, mode, horizon, soft, no_done
):
    """Env steps and agent steps are the same here, so `count_steps_by` has nothing to change."""
    config = {
        "num_env_runners": runners,
        "rollout_fragment_length": length,
        "batch_mode": mode,
        "horizon": horizon,
        "soft_horizon": soft and horizon is not None,
        "no_done_at_end": no_done,
    }
    unit = num_envs * max(runners, 1) * (1 if length == "auto" else length)
    wanted = unit * rounds
    settings_of_all = EnvRunnersConfig(num_envs_per_env_runner=num_envs, **config)
    made = [
        limited(num_envs, env={"random_length": True}, **config) for _ in range(max(runners, 1))
    ]
    total = 0
    for asked in fragment_lengths(wanted, settings_of_all):
        for runner, steps in zip(made, asked, strict=True):
            reply = collect(runner, [steps])[0]
            batch = reply.batch
            assert reply.env_steps == len(batch) == batch.env_steps() == batch.agent_steps()
            assert not horizon or batch["t"].max() < horizon
            assert not (no_done and batch["terminateds"].any())
            if mode == "truncate_episodes":
                assert len(batch) == steps * num_envs
            else:
                assert len(batch) >= steps * num_envs
                assert sum(episode.length for episode in reply.episodes) == len(batch)
            total += len(batch)
    assert total == wanted if mode == "truncate_episodes" else total >= wanted


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
def test_a_hard_horizon_truncates_all_agents_and_resets(length, fragments):
    rows, episodes = rows_of(scripted(2, horizon=4), length, fragments)
    for env_index in range(2):
        for episode in range(3):
            for index, (agent, expected) in enumerate(CUT_AT_4.items()):
                *before, last = expected
                wanted = [(*row, False) for row in before] + [(*last, True)]
                assert played(rows[env_index, episode, index]) == wanted, agent
    assert {episode.length for episode in episodes} == {4}


def test_a_horizon_can_terminate_all_agents():
    rows, episodes = rows_of(scripted(horizon=4, horizon_terminates=True), 7, 2)
    for played_rows in rows.values():
        assert not any(row["truncateds"] for row in played_rows)
    ends = [row["t"] for index in range(3) for row in rows[0, 0, index] if row["terminateds"]]
    assert len(ends) == len(CUT_AT_4)
    assert {episode.length for episode in episodes} == {4}


@pytest.mark.parametrize(("length", "fragments"), [(1, 14), (5, 3), (7, 2)])
def test_a_soft_horizon_lets_agents_go_on_without_a_reset_and_without_a_flag(length, fragments):
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


def test_no_done_at_end_makes_every_end_of_agents_a_truncation():
    rows, _ = rows_of(scripted(no_done_at_end=True), 7, 2)
    for index, agent in enumerate("abc"):
        wanted = [(*row[:4], False, row[4] or row[5]) for row in EXPECTED[agent]]
        assert played(rows[0, 0, index]) == wanted


def test_a_horizon_that_no_episode_reaches_changes_nothing():
    (free, _), (limited, _) = rows_of(scripted(), 7, 2), rows_of(scripted(horizon=7), 7, 2)
    assert {key: played(rows) for key, rows in free.items()} == {
        key: played(rows) for key, rows in limited.items()
    }


@pytest.mark.parametrize("soft", [False, True])
def test_evaluation_of_several_agents_ends_at_the_horizon(soft):
    runner = scripted(2, horizon=4, soft_horizon=soft)
    episodes = run_episodes(runner, range(3), seed=1)
    assert [episode.length for episode in episodes] == [4, 4, 4]
    assert {episode.episode_return for episode in episodes} == {5.0 + 61.0 + 1.0}


def short_cart_pole():
    """A cart pole with time limits of 5 steps, and of 7 around it."""
    return gym.wrappers.TimeLimit(gym.make("CartPole-v1", max_episode_steps=5), 7)


two_short_cart_poles = make_multi_agent(short_cart_pole)


@pytest.mark.parametrize(("horizon", "longest"), [(None, 5), (4, 4), (8, 8)])
def test_a_time_limit_of_copies_is_raised_to_the_horizon(horizon, longest):
    runner = make("test_horizon:two_short_cart_poles", {"p": MLP}, num_envs=4, horizon=horizon)
    reply = sample(runner, 0, 100)
    assert max(episode.length for episode in reply.episodes) == longest


@pytest.mark.parametrize(("horizon", "longest"), [(None, 5), (4, 4), (8, 8)])
def test_all_time_limits_of_an_environment_are_raised_to_the_horizon(horizon, longest):
    settings = EnvRunnersConfig(num_envs_per_env_runner=4, horizon=horizon)
    runner = EnvRunner(RunnerSpec(EnvSpec(use="test_horizon:short_cart_pole"), settings))
    reply = runner.sample_fragment(SampleRequest(0, 100))
    assert max(episode.length for episode in reply.episodes) == longest
