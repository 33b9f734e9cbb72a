"""Horizons end episodes as truncations, softly or not; counts are exact in every combination."""

import gymnasium as gym
import numpy as np
import pytest
from counting_envs import AlwaysOne, CountingEnv, collect
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config.batch_arithmetic import fragment_lengths
from rlrun.config.schema import EnvRunnersConfig, EnvSpec
from rlrun.envs.errors import EnvError
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.evaluation import play_episodes
from rlrun.sampling.runner_messages import RunnerSpec


def limited(num_envs=1, *, use="counting_envs:CountingEnv", env=None, **config):
    return EnvRunner(
        RunnerSpec(
            EnvSpec(use=use, kwargs=env or {}),
            EnvRunnersConfig(num_envs_per_env_runner=num_envs, **config),
            policy_factory=lambda o, a, m: AlwaysOne(o, a),
        )
    )


def test_a_hard_horizon_truncates_and_resets():
    reply = collect(limited(env={"length": 9}, horizon=4), [10])[0]
    batch = reply.batch
    assert batch["t"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert np.flatnonzero(batch["truncateds"]).tolist() == [3, 7]
    assert not batch["terminateds"].any()
    assert batch["obs"][4, 1] == 0, "the environment was reset"
    assert batch["new_obs"][3, 1] == 4, "the final observation is there to bootstrap from"
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


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_a_restored_runner_goes_on_to_the_bit(soft, mode):
    config = {"env": {"length": 11}, "horizon": 4, "soft_horizon": soft, "batch_mode": mode}
    straight, resumed = limited(2, **config), limited(2, **config)
    collect(straight, [6, 5])
    resumed.set_state(straight.get_state())
    one, two = (collect(runner, [9])[0] for runner in (straight, resumed))
    assert one.episodes == two.episodes
    for name in one.batch:
        np.testing.assert_array_equal(one.batch[name], two.batch[name], err_msg=name)


def test_evaluation_ends_at_the_horizon_too():
    runner = limited(env={"length": 99}, horizon=7)
    episodes = play_episodes(runner, num_episodes=3, seed=1)
    assert [episode.length for episode in episodes] == [7, 7, 7]


def test_an_environment_that_resets_itself_cannot_be_cut_short():
    with pytest.raises(EnvError, match="horizon must end episodes"):
        limited(2, use="counting_envs:autonomous", horizon=3)


@settings(max_examples=60, deadline=None)
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
