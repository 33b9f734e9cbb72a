"""IMPALA, APPO and A3C with runners that do not wait: what still holds, and what they report."""

import time

import numpy as np
import pytest
import torch

from rlrun import A3CConfig, APPOConfig, EnvRunner, IMPALAConfig
from rlrun.algorithms.a3c import sample_gradients
from rlrun.checkpoint.state_codec import decode, encode
from rlrun.config.batch_arithmetic import stream_length, stream_problems
from rlrun.config.problems import ConfigError
from rlrun.config.schema import EnvRunnersConfig
from rlrun.data import columns as col
from rlrun.learning.loaded_batch import LoadedBatch
from rlrun.policies.rl_module import ActorCritic

CONFIGS = {"IMPALA": IMPALAConfig, "APPO": APPOConfig, "A3C": A3CConfig}
TWO_STATES = "rlrun.envs.examples:RepeatAfterMe"  # name the token you see: return 10
BATCH = 80


def configured(name, *, runners=2, envs=2, **training):
    return (
        CONFIGS[name]()
        .environment(TWO_STATES, env_config={"delay": 0, "length": 10})
        .env_runners(
            num_env_runners=runners, num_envs_per_env_runner=envs, num_cpus_per_env_runner=0.1
        )
        .model(hidden=[16])
        .training(train_batch_size=BATCH, lr=0.02, entropy_coeff=0.0, **training)
        .debugging(seed=3)
    )


@pytest.fixture(scope="module", params=CONFIGS)
def trained(request, local_ray, actor_pool):
    """An algorithm after 40 iterations with two remote runners, and its results."""
    with actor_pool.shared():
        algorithm = configured(request.param).build()
    yield algorithm, [algorithm.train() for _ in range(40)]
    algorithm.stop()


def stats(row):
    return row["learners"]["default_policy"]["learner_stats"]


def test_it_learns_what_to_do_in_two_states(trained):
    _, rows = trained
    assert rows[-1]["episode_return_mean_this_iter"] >= 9
    assert [row["env_steps_this_iter"] for row in rows] == [BATCH] * 40


def test_the_lag_of_the_policy_is_reported(trained):
    _, rows = trained
    assert stats(rows[0])["policy_lag_mean"] >= 0
    assert max(stats(row)["policy_lag_max"] for row in rows) >= 1
    assert all(stats(row)["policy_lag_mean"] <= stats(row)["policy_lag_max"] for row in rows)


@pytest.mark.parametrize("trained", ["IMPALA", "APPO"], indirect=True)
def test_runners_that_are_ahead_of_the_learner_wait_with_one_batch(trained, monkeypatch):
    algorithm, _ = trained
    sync_weights = algorithm.sync_weights
    monkeypatch.setattr(algorithm, "sync_weights", lambda: (time.sleep(0.05), sync_weights()))
    lags = [stats(algorithm.train())["policy_lag_max"] for _ in range(12)]
    assert 1 <= np.median(lags[4:]) <= 3  # one batch waits, one is under way


@pytest.mark.parametrize("name", CONFIGS)
def test_a_runner_in_the_process_acts_with_the_newest_weights(built, name):
    algorithm = built(configured(name, runners=0))
    found = [stats(algorithm.train()) for _ in range(2)]
    assert [row["policy_lag_mean"] for row in found] == [0, 0]
    assert [row["policy_lag_max"] for row in found] == [0, 0]


@pytest.mark.parametrize("name", CONFIGS)
def test_statistics_are_means_over_the_updates_of_an_iteration(built, name):
    more = {} if name == "A3C" else {"num_epochs": 2}
    algorithm = built(configured(name, runners=0, **more).env_runners(rollout_fragment_length=10))
    found = stats(algorithm.train())
    assert found["num_updates"] > 1
    assert found["entropy"] == pytest.approx(np.log(2), rel=0.1), "of two actions, at first"


def test_impala_reports_how_old_a_batch_was_before_its_first_pass(built):
    algorithm = built(configured("IMPALA", runners=0, num_epochs=2))
    assert stats(algorithm.train())["mean_ratio"] == pytest.approx(1.0, abs=1e-6)


def rows_of(reply):
    """The rows of a reply, or their gradients."""
    if hasattr(reply, "by_policy"):
        found = reply.by_policy["default_policy"]
        return {"gradients": found.gradients, **found.statistics}
    batch = reply.batch.copy(shallow=True)
    batch.reads = None
    return dict(batch)


def train_until(algorithm, fragments):
    """Train until replies to all these requests were taken; returns all that were, by fragment."""
    stream = algorithm.stream if hasattr(algorithm, "stream") else algorithm.batches
    sampler = stream.sampler
    take, taken = sampler.take, {}

    def remember():
        reply = take()
        index = getattr(reply, "sampled", reply).runner_index
        states = algorithm.env_runner_group.get_states()
        taken[states[index]["next_fragment"] - 1] = reply
        return reply

    sampler.take = remember
    for _ in range(50):
        algorithm.train()
        if fragments <= taken.keys():
            break
    sampler.take = take
    assert fragments <= taken.keys()
    return taken


def test_what_was_under_way_when_a_state_was_taken_comes_again_with_the_same_rows(trained):
    algorithm, _ = trained
    state, weights = decode(*encode(algorithm.get_state())), algorithm.get_weights()
    (stream,) = state["algorithm"].keys() & {"batches", "fragments"}
    sampler_state = state["algorithm"][stream]["sampler"]
    under_way = {
        request["fragment"]: (index, request["weights_version"])
        for index, requests in sampler_state["under_way"].items()
        for request in requests
    }
    assert {index for index, _ in under_way.values()} == {1, 2}
    left_alone = train_until(algorithm, under_way.keys())
    algorithm.set_weights(weights)
    algorithm.set_state(state)
    assert algorithm.env_steps == state["progress"]["env_steps"]
    for name, value in algorithm.get_weights().items():
        np.testing.assert_array_equal(value, weights[name])
    restored = train_until(algorithm, under_way.keys())
    for fragment, asked in under_way.items():
        for replies in (left_alone, restored):
            reply = getattr(replies[fragment], "sampled", replies[fragment])
            assert (reply.runner_index, reply.weights_version) == asked
        before, after = rows_of(left_alone[fragment]), rows_of(restored[fragment])
        assert after.keys() <= before.keys()  # without columns that were found unread since
        for name, values in after.items():
            np.testing.assert_array_equal(values, before[name])
    assert (algorithm.env_steps - state["progress"]["env_steps"]) % BATCH == 0


def test_a_policy_that_came_after_the_broadcast_gets_weights_also_in_a_resumed_run(built):
    policies = {"first": {}, "second": {"train": False}}
    algorithm = built(
        IMPALAConfig()
        .environment("rlrun.envs.multi_agent_examples:MultiAgentCartPole")
        .env_runners(num_env_runners=0)
        .model(hidden=[8])
        .multi_agent(policies=policies, agents={"agent_0": "first", "agent_1": "second"})
        .training(train_batch_size=20, broadcast_interval=5)
        .debugging(seed=3)
    )
    algorithm.train()
    algorithm.add_policy("third", like="first")
    state, weights = decode(*encode(algorithm.get_state())), algorithm.get_weights()
    algorithm.set_weights(weights)
    algorithm.set_state(state)
    algorithm.train()
    runner = algorithm.env_runner_group.local_env_runner
    acting = runner.policies["third"].get_weights()
    np.testing.assert_array_equal(acting, algorithm.learners["third"].get_weights())


@pytest.mark.parametrize("name", ["IMPALA", "APPO"])
def test_a_broadcast_interval_lets_runners_act_with_older_weights(name, built):
    algorithm = built(configured(name, runners=0, broadcast_interval=3))
    lags = [stats(algorithm.train())["policy_lag_max"] for _ in range(7)]
    assert lags == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("name", ["IMPALA", "APPO"])
def test_weights_that_are_set_go_with_the_next_request_whatever_the_interval(name, built):
    algorithm, resumed = (built(configured(name, runners=0, broadcast_interval=4)) for _ in "ab")
    for _ in range(2):
        algorithm.train()
    algorithm.set_weights({key: value / 2 for key, value in algorithm.get_weights().items()})
    resumed.set_weights(algorithm.get_weights())
    resumed.set_state(decode(*encode(algorithm.get_state())))
    for each in (algorithm, resumed):
        lags = [stats(each.train())["policy_lag_max"] for _ in range(5)]
        assert lags == [0, 1, 2, 3, 0]


def test_appo_uses_a_batch_as_often_as_its_buffer_says(built):
    buffer = {"circular_buffer_num_batches": 2, "circular_buffer_iterations_per_batch": 3}
    algorithm = built(configured("APPO", runners=0, **buffer))
    rows = [algorithm.train() for _ in range(4)]
    assert [stats(row)["num_updates"] for row in rows] == [1, 3, 3, 3]  # it fills with two


def test_appo_asks_its_target_policy_once_for_all_epochs(built, monkeypatch):
    """Its answer stays; the values of the network that learns are computed for each epoch."""
    algorithm = built(configured("APPO", runners=0, num_epochs=3))
    algorithm.train()
    asked, outputs = [], LoadedBatch.outputs

    def counted(rows, module, *arguments):
        asked.append(module)
        return outputs(rows, module, *arguments)

    monkeypatch.setattr(LoadedBatch, "outputs", counted)
    algorithm.train()
    (updater,) = algorithm.updaters.values()
    learned = algorithm.learners["default_policy"].module
    assert [module is updater.target.module for module in asked] == [True, False, False, False]
    assert [module is learned for module in asked] == [False, True, True, True]


def test_appo_renews_its_target_policy_every_few_updates(built):
    algorithm = built(configured("APPO", runners=0, target_network_update_freq=3))
    targets, weights = [], []
    for _ in range(6):
        algorithm.train()
        state = algorithm.get_state()["algorithm"]["updaters"]["default_policy"]
        targets.append(state["target"]["weights"])
        weights.append(algorithm.learner.get_weights())
    for i, renewed_at in enumerate([None, None, 2, 2, 2, 5]):
        if renewed_at is not None:
            np.testing.assert_array_equal(targets[i], weights[renewed_at])
    np.testing.assert_array_equal(targets[0], targets[1])
    assert not np.array_equal(targets[1], weights[1])


class DropsOut(ActorCritic):
    """Draws from torch's global generator in each gradient."""

    def forward_train(self, batch):
        rows = {**batch, col.OBS: torch.dropout(batch[col.OBS], 0.5, self.training)}
        return super().forward_train(rows)

    has_vjp = False


@pytest.mark.faults
def test_a3c_gradients_that_draw_from_torchs_generator_follow_from_the_seed(built, local_ray):
    found = []
    for _ in range(2):
        algorithm = built(configured("A3C", runners=1).model(use=f"{__name__}:DropsOut"))
        algorithm.train()
        found.append(algorithm.learner.get_weights())
    np.testing.assert_array_equal(*found)


def test_a3c_a_runners_gradient_is_the_one_the_learner_would_compute(built):
    algorithm = built(configured("A3C", runners=0))
    runner = EnvRunner(algorithm.env_runner_group.spec)
    twin = EnvRunner(algorithm.env_runner_group.spec)
    request, weights = algorithm.next_request(20), algorithm.learner.get_weights()
    reply = sample_gradients(runner, request, weights)
    batch = twin.sample_fragment(request, weights).batch
    gradients, statistics = twin.policy.compute_gradients(batch)
    assert statistics["vf_explained_variance"] <= 1.0
    np.testing.assert_array_equal(reply.by_policy["default_policy"].gradients, gradients)
    assert reply.sampled.batch.agent_steps() == 0  # only the gradient travels
    assert reply.sampled.env_steps == 40
    assert np.abs(gradients).max() > 0
    np.testing.assert_array_equal(twin.policy.get_weights(), weights)


def test_the_lag_grows_as_long_as_runners_have_no_new_weights(built, monkeypatch):
    algorithm = built(configured("A3C", runners=0, envs=1))
    algorithm.train()
    monkeypatch.setattr(algorithm.stream, "broadcast", lambda: None)
    result = algorithm.train()["learners"]["default_policy"]
    lags = range(result["learner_stats"]["num_updates"])
    assert len(lags) > 2
    assert result["learner_stats"]["policy_lag_mean"] == np.mean(lags)
    assert result["learner_stats"]["policy_lag_max"] == max(lags)


@pytest.mark.parametrize("trained", ["A3C"], indirect=True)
def test_a3c_new_weights_go_to_the_runner_that_sent_a_gradient_and_to_no_other(trained):
    algorithm, _ = trained
    sampler, versions, taken = algorithm.stream.sampler, {}, 0
    take = sampler.take

    def taking():
        nonlocal taken
        reply, taken = take(), taken + 1
        runner, version = reply.sampled.runner_index, algorithm.policies.weights_version
        # Acted with the weights that were there when its last gradient had been applied.
        assert reply.sampled.weights_version == versions.get(runner, reply.sampled.weights_version)
        versions[runner] = version + 1
        return reply

    sampler.take = taking
    for _ in range(5):
        algorithm.train()
    sampler.take = take
    assert taken == 5 * BATCH / 40  # env steps of a fragment
    assert versions.keys() == {1, 2}


@pytest.mark.parametrize(
    ("runners", "envs", "length", "expected"),
    [(0, 1, "auto", 64), (2, 2, "auto", 16), (3, 4, "auto", 4), (3, 4, 8, 8), (1, 1, 1, 1)],
)
def test_whole_fragments_make_the_batch_exactly(runners, envs, length, expected):
    settings = EnvRunnersConfig(
        num_env_runners=runners, num_envs_per_env_runner=envs, rollout_fragment_length=length
    )
    assert list(stream_problems(64, settings)) == []
    assert stream_length(64, settings) == expected
    assert 64 % (expected * envs) == 0


def test_a_batch_that_fragments_cannot_make_is_refused_with_its_arithmetic():
    with pytest.raises(ConfigError, match="cannot be met exactly"):
        IMPALAConfig().environment("CartPole-v1").env_runners(
            rollout_fragment_length=30, num_envs_per_env_runner=4
        ).training(train_batch_size=512).build()
