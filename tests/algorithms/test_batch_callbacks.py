"""Callbacks that change fragments and train batches."""

import os
import signal
from collections import Counter

import numpy as np
import pytest
import tiny
from tiny import learner_stats

from rlrun.algorithms.callbacks import Callbacks
from rlrun.algorithms.ppo import PPOConfig
from rlrun.data import columns as col

calls = Counter()


class Bonus(Callbacks):
    def on_learn_on_batch(self, algorithm, policy_id, batch):
        batch[col.REWARDS] = batch[col.REWARDS] + np.float32(100)


@pytest.mark.parametrize("name", ["PPO", "PPO, LSTM", "IMPALA"])
def test_a_bonus_is_in_the_value_targets_and_not_in_the_returns(built, name):
    """With gamma 0 targets are rewards: CartPole's 1, and 100; values begin near 0."""
    config = tiny.ALGORITHMS[name]().environment("CartPole-v1").training(gamma=0.0, lr=1e-9)
    algorithm = built(config.callbacks(f"{__name__}:Bonus"))
    assert learner_stats(algorithm)["vf_loss"] == pytest.approx(101**2 / 2, rel=0.02)
    result = algorithm.train()
    assert result["episode_return_mean"] == result["episode_len_mean"]


class Dropping(Callbacks):
    def on_learn_on_batch(self, algorithm, policy_id, batch):
        del batch[col.NEXT_OBS]


@pytest.mark.parametrize("name", ["PPO", "PPO, LSTM", "IMPALA"])
def test_a_column_that_a_callback_has_deleted_is_named_where_it_is_read(built, name):
    config = tiny.ALGORITHMS[name]().environment("CartPole-v1")
    algorithm = built(config.callbacks(f"{__name__}:Dropping"))
    with pytest.raises(KeyError, match=f"'{col.NEXT_OBS}'; the .*batch"):
        algorithm.train()


class Fragments(Callbacks):
    """Adds to the rewards of each fragment, to each policy's alike, and a column."""

    def on_sample_end(self, env_runner, samples):
        assert env_runner.role.name == "TRAIN"
        batches = samples.as_multi_agent().policy_batches
        for policy_id, batch in batches.items():
            assert env_runner.actors.keys() >= {policy_id}
            assert col.ACTION_DIST_INPUTS in batch
            batch[col.REWARDS] = batch[col.REWARDS] + 2.0
            batch["fragment"] = np.full(len(batch), calls["fragments"])
            calls["rows"] += len(batch)
        calls["fragments"] += 1


def sampling(config, env, runners=0):
    policies = ["agent_0", "agent_1"] if env == "MultiAgentCartPole" else []
    config = config.environment(env).callbacks(f"{__name__}:Fragments").debugging(seed=3)
    config = config.env_runners(num_env_runners=runners, num_cpus_per_env_runner=0.1)
    return config.multi_agent(policies=policies) if policies else config


@pytest.mark.parametrize("env", ["CartPole-v1", "MultiAgentCartPole"])
@pytest.mark.parametrize("name", ["PPO", "A3C", "IMPALA", "DQN"])
def test_each_fragment_is_shown_once_with_all_its_rows(built, name, env):
    config = sampling(tiny.ALGORITHMS[name](), env).evaluation(interval=1, episodes=1)
    calls.clear()
    algorithm = built(config)
    result = [algorithm.train() for _ in range(2)][-1]
    assert calls["rows"] == result["agent_steps"]
    assert calls["fragments"] > 1
    if name == "PPO":
        batches = algorithm.sample().as_multi_agent().policy_batches
        assert all((batch[col.REWARDS] == 3.0).all() for batch in batches.values())


class Shortens(Callbacks):
    def on_sample_end(self, env_runner, samples):
        for name in list(samples.keys()):
            samples[name] = samples[name][1:]


class Unequal(Callbacks):
    def on_sample_end(self, env_runner, samples):
        samples[col.REWARDS] = samples[col.REWARDS][1:]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("Shortens", r"Shortens.on_sample_end: .*99} rows by policy are left of .*100}"),
        ("Unequal", r"Unequal.on_sample_end: .*'rewards' has \[99\] rows"),
    ],
)
def test_a_fragment_keeps_its_number_of_rows(built, kind, says):
    config = PPOConfig().environment("CartPole-v1").callbacks(f"{__name__}:{kind}")
    algorithm = built(config.training(train_batch_size=100, minibatch_size=100))
    with pytest.raises(ValueError, match=says):
        algorithm.train()


@pytest.mark.faults
def test_a_fragment_that_is_sampled_again_is_shown_and_changed_again(shared_actors, built):
    rows = []
    for killed in (False, True):
        algorithm = built(sampling(tiny.ALGORITHMS["PPO"](), "CartPole-v1", runners=2))
        if killed:
            pids = algorithm.env_runner_group.foreach_env_runner(lambda _: os.getpid())
            os.kill(pids[-1], signal.SIGKILL)
        batch = algorithm.sample()
        assert (batch[col.REWARDS] == 3.0).all()
        rows.append(batch[col.OBS])
    np.testing.assert_array_equal(*rows)
