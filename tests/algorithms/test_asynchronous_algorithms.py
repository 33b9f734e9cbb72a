"""IMPALA, APPO and A3C with runners that do not wait: what still holds, and what they report."""

import numpy as np
import pytest

from rlrun import A3CConfig, APPOConfig, EnvRunner, IMPALAConfig
from rlrun.algorithms.a3c import sample_gradients
from rlrun.config.batch_arithmetic import stream_length, stream_problems
from rlrun.config.problems import ConfigError
from rlrun.config.schema import EnvRunnersConfig

CONFIGS = {"IMPALA": IMPALAConfig, "APPO": APPOConfig, "A3C": A3CConfig}
TWO_STATES = "rlrun.sampling.example_envs:RepeatAfterMe"  # name the token you see: return 10
BATCH = 80


def build(name, *, runners=2, lanes=2, **training):
    return (
        CONFIGS[name]()
        .environment(TWO_STATES, env_config={"delay": 0, "length": 10})
        .env_runners(
            num_env_runners=runners, num_envs_per_env_runner=lanes, num_cpus_per_env_runner=0.1
        )
        .model(hidden=[16])
        .training(train_batch_size=BATCH, lr=0.02, entropy_coeff=0.0, **training)
        .debugging(seed=3)
        .build()
    )


@pytest.fixture(scope="module", params=CONFIGS)
def trained(request):
    """An algorithm after 40 iterations with two remote runners, and its results."""
    algorithm = build(request.param)
    yield algorithm, [algorithm.train() for _ in range(40)]
    algorithm.stop()


def stats(row):
    return row["learners"]["default_policy"]["learner_stats"]


def test_it_learns_what_to_do_in_two_states(trained):
    _, rows = trained
    assert rows[-1]["episode_return_mean_this_iter"] >= 9
    assert [row["env_steps_this_iter"] for row in rows] == [BATCH] * 40


def test_the_lag_of_the_policy_is_reported_and_bounded(trained):
    _, rows = trained
    lags = [stats(row)["policy_lag_max"] for row in rows]
    assert stats(rows[0])["policy_lag_mean"] >= 0
    assert 1 <= max(lags) <= 2 * (16 + 2)  # two fragments a batch; what waits, and is under way
    assert all(stats(row)["policy_lag_mean"] <= stats(row)["policy_lag_max"] for row in rows)


def test_a_state_goes_round_also_into_an_algorithm_with_requests_under_way(trained):
    algorithm, _ = trained
    state, weights = algorithm.get_state(), algorithm.get_weights()
    env_steps = algorithm.env_steps
    for _ in range(2):
        algorithm.train()
    algorithm.set_weights(weights)
    algorithm.set_state(state)
    assert algorithm.env_steps == env_steps
    for name, value in algorithm.get_weights().items():
        np.testing.assert_array_equal(value, weights[name])
    row = algorithm.train()
    assert row["env_steps"] == env_steps + BATCH
    # What was under way is forgotten: all of this batch was sampled with the restored weights.
    assert stats(row)["policy_lag_max"] <= 2
    assert row["episode_return_mean_this_iter"] >= 9


@pytest.mark.parametrize("name", ["IMPALA", "APPO"])
def test_a_broadcast_interval_lets_runners_act_with_older_weights(name):
    algorithm = build(name, runners=0, broadcast_interval=3)
    lags = [stats(algorithm.train())["policy_lag_max"] for _ in range(7)]
    algorithm.stop()
    assert lags == [0, 1, 2, 0, 1, 2, 0]


def test_appo_uses_a_batch_as_often_as_its_buffer_says():
    algorithm = build(
        "APPO", runners=0, circular_buffer_num_batches=2, circular_buffer_iterations_per_batch=3
    )
    rows = [algorithm.train() for _ in range(4)]
    algorithm.stop()
    assert [stats(row)["num_updates"] for row in rows] == [3, 3, 3, 3]


def test_appo_renews_its_target_policy_every_few_updates():
    algorithm = build("APPO", runners=0, target_network_update_freq=3)
    targets, weights = [], []
    for _ in range(6):
        algorithm.train()
        state = algorithm.get_extra_state()["updaters"]["default_policy"]
        targets.append(state["target"])
        weights.append(algorithm.learner.get_weights())
    algorithm.stop()
    for i, renewed_at in enumerate([None, None, 2, 2, 2, 5]):
        if renewed_at is not None:
            np.testing.assert_array_equal(targets[i], weights[renewed_at])
    np.testing.assert_array_equal(targets[0], targets[1])
    assert not np.array_equal(targets[1], weights[1])


def test_a3c_a_runners_gradient_is_the_one_the_learner_would_compute():
    algorithm = build("A3C", runners=0)
    runner = EnvRunner(algorithm._runner_spec)
    twin = EnvRunner(algorithm._runner_spec)
    request, weights = algorithm.next_request(20), algorithm.learner.get_weights()
    reply = sample_gradients(runner, request, weights)
    batch = twin.sample_fragment(request, weights).batch
    gradients, _ = twin.policy.compute_gradients(batch)
    np.testing.assert_array_equal(reply.by_policy["default_policy"].gradients, gradients)
    assert reply.sampled.batch.agent_steps() == 0  # only the gradient travels
    assert reply.sampled.env_steps == 40
    assert np.abs(gradients).max() > 0
    np.testing.assert_array_equal(twin.policy.get_weights(), weights)
    algorithm.stop()


@pytest.mark.parametrize(
    ("runners", "lanes", "length", "expected"),
    [(0, 1, "auto", 64), (2, 2, "auto", 16), (3, 4, "auto", 4), (3, 4, 8, 8), (1, 1, 1, 1)],
)
def test_whole_fragments_make_the_batch_exactly(runners, lanes, length, expected):
    settings = EnvRunnersConfig(
        num_env_runners=runners, num_envs_per_env_runner=lanes, rollout_fragment_length=length
    )
    assert list(stream_problems(64, settings)) == []
    assert stream_length(64, settings) == expected
    assert 64 % (expected * lanes) == 0


def test_a_batch_that_fragments_cannot_make_is_refused_with_its_arithmetic():
    with pytest.raises(ConfigError, match="cannot be met exactly"):
        IMPALAConfig().environment("CartPole-v1").env_runners(
            rollout_fragment_length=30, num_envs_per_env_runner=4
        ).training(train_batch_size=512).build()
