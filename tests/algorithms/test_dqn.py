"""DQN: what happens when, values that are not finite, and what is refused."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from loss_cases import DISCRETE, OBS_SPACE, replay_rows

from rlrun import ConfigError, DQNConfig, PPOConfig
from rlrun.algorithms.dqn import c51_loss, dqn_loss, project_distribution
from rlrun.algorithms.policies import DivergedError
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.layers import QOptions
from rlrun.policies.q_network import QNetwork
from rlrun.replay.sequence_replay_buffer import SequenceReplayBuffer


def make_networks(**options):
    torch.manual_seed(3)
    model = ModelConfig(hidden=(8, 8))
    options = QOptions(dueling=True, **options)
    return [QNetwork(OBS_SPACE, DISCRETE, model, options) for _ in range(2)]


def test_distributions_of_values_are_not_rescaled():
    config = DQNConfig().environment("CartPole-v1").training(num_atoms=2, value_rescaling=True)
    with pytest.raises(ConfigError, match=r"training\.value_rescaling.*remove this key"):
        config.experiment()


def test_a_value_that_blew_up_behind_a_terminal_does_no_harm():
    module, target = make_networks()
    rows = replay_rows(DISCRETE)
    rows[col.TERMINATEDS][:] = True
    with torch.no_grad():
        target.value.last.bias.fill_(float("inf"))
    assert torch.isfinite(dqn_loss(module, rows, target=target, double_q=True)[0])


def build(**training):
    settings = {
        "train_batch_size": 64,
        "minibatch_size": 16,
        "training_intensity": 4,
        "num_steps_sampled_before_learning_starts": 100,
    }
    return (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=2)
        .training(**{**settings, **training})
        .exploration(epsilon=[[0, 1.0], [256, 0.0]])
        .debugging(seed=3)
    )


def statistics_of(algorithm):
    return algorithm.train()["learners"]["default_policy"]["learner_stats"]


class OneStep(gym.Env):
    """Each episode is a single step."""

    observation_space, action_space = OBS_SPACE, DISCRETE

    def reset(self, *, seed=None, options=None):
        return np.zeros(OBS_SPACE.shape, np.float32), {}

    def step(self, action):
        return np.zeros(OBS_SPACE.shape, np.float32), 0.0, True, False, {}


def test_errors_of_which_some_are_no_numbers_end_training_and_become_no_priorities(built):
    config = build(dueling=False, num_steps_sampled_before_learning_starts=1)
    config = config.environment(f"{__name__}:OneStep").exploration(epsilon=1.0)
    algorithm = built(config.replay(prioritized=True))
    weights = algorithm.get_weights()
    of_actions = [key for key, value in weights.items() if value.shape == (DISCRETE.n,)]
    for key in of_actions:
        weights[key][0] = np.nan
    algorithm.set_weights(weights)
    with pytest.raises(DivergedError, match="diverged in iteration 1"):
        algorithm.train()


def test_learning_starts_when_the_buffer_holds_enough_and_then_keeps_its_pace(built):
    algorithm = built(build())
    before = algorithm.get_weights()
    first = statistics_of(algorithm)
    assert (first["num_updates"], first["total_loss"], first["replay_size"]) == (0, None, 64)
    for name, value in algorithm.get_weights().items():
        np.testing.assert_array_equal(value, before[name])
    # The rounds of 4 steps that end at 100, 104, ..., 128 are followed by one update each.
    assert statistics_of(algorithm)["num_updates"] == 8
    assert statistics_of(algorithm)["num_updates"] == 16


def test_updates_that_do_not_come_out_even_are_made_up_for(built):
    settings = {"training_intensity": 3, "num_steps_sampled_before_learning_starts": 1}
    algorithm = built(build(**settings))
    assert sum(statistics_of(algorithm)["num_updates"] for _ in range(3)) == 3 * 64 * 3 // 16


def test_epsilon_follows_the_env_steps_of_the_run_and_survives_a_restore(built):
    algorithm = built(build())
    assert [statistics_of(algorithm)["epsilon"] for _ in range(3)] == [1.0, 0.75, 0.5]
    resumed = built(build())
    resumed.set_weights(algorithm.get_weights())
    resumed.set_state(algorithm.get_state())
    assert statistics_of(resumed)["epsilon"] == 0.25
    assert resumed.exploration("default_policy") == {"epsilon": 0.0}


def test_without_its_buffer_a_resumed_run_fills_it_first(built):
    algorithm = built(build())
    for _ in range(3):
        algorithm.train()
    state = algorithm.get_state()
    assert state["algorithm"]["replay"]["buffer"] is None
    resumed = built(build())
    resumed.set_weights(algorithm.get_weights())
    resumed.set_state(state)
    assert [statistics_of(resumed)["num_updates"] for _ in range(3)] == [0, 8, 16]
    resumed.set_weights(algorithm.get_weights())  # it is brought back to where it began
    resumed.set_state(state)
    assert [statistics_of(resumed)["num_updates"] for _ in range(3)] == [0, 8, 16]
    assert statistics_of(resumed)["replay_size"] == 4 * 64


@pytest.mark.parametrize("activation", ["elu", "tanh"])
def test_streams_of_their_own_learn_behind_any_activation(built, activation):
    model = {"hidden": [8], "activation": activation}
    algorithm = built("DQN", model=model, training={"hiddens": [8]})
    algorithm.train()
    assert algorithm.train()["learners"]["default_policy"]["learner_stats"]["num_updates"] > 0


def test_actions_must_be_discrete():
    with pytest.raises(ConfigError, match="Discrete action space"):
        DQNConfig().environment("Pendulum-v1").build()


def test_a_section_that_the_algorithm_does_not_use_is_refused():
    config = PPOConfig().environment("CartPole-v1").replay(capacity=7)
    with pytest.raises(ConfigError, match="PPO does not use this section"):
        config.experiment()


def test_a_buffer_must_hold_what_learning_waits_for():
    config = DQNConfig().environment("CartPole-v1").replay(capacity=500)
    with pytest.raises(ConfigError, match=r"replay\.capacity.*1000"):
        config.experiment()


@pytest.mark.parametrize("final", [math.inf, math.nan])
@pytest.mark.parametrize(
    ("loss", "options"),
    [(dqn_loss, {}), (c51_loss, {"num_atoms": 7, "v_min": -3.0, "v_max": 3.0})],
)
def test_the_observation_behind_a_termination_does_not_matter(loss, options, final):
    module, target = make_networks(**options)
    rows = replay_rows(DISCRETE)
    expected = loss(module, rows, target=target, double_q=True)[0].item()
    rows[col.NEXT_OBS] = rows[col.NEXT_OBS].clone()
    rows[col.NEXT_OBS][rows[col.TERMINATEDS]] = final
    assert rows[col.TERMINATEDS].any()
    assert loss(module, rows, target=target, double_q=True)[0].item() == expected


@pytest.mark.parametrize(
    ("loss", "options"),
    [(dqn_loss, {}), (c51_loss, {"num_atoms": 7, "v_min": -3.0, "v_max": 5.0})],
)
def test_the_statistics_are_means_of_the_values_of_the_actions_taken(loss, options):
    module, target = make_networks(**options)
    rows = replay_rows(DISCRETE)
    values = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
    taken = values.gather(1, rows[col.ACTIONS][:, None])
    statistics = loss(module, rows, target=target, double_q=True)[1]
    assert statistics["q_mean"].item() == pytest.approx(taken.mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "options"),
    [(dqn_loss, {}), (c51_loss, {"num_atoms": 7, "v_min": -3.0, "v_max": 3.0})],
)
def test_the_error_of_a_last_step_is_how_far_its_value_is_from_its_reward(loss, options):
    module, target = make_networks(**options)
    rows = replay_rows(DISCRETE)
    rows[col.TERMINATEDS][:] = True
    rows[col.REWARDS] = rows[col.REWARDS].clamp(-3.0, 3.0)
    values = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
    errors = values.gather(1, rows[col.ACTIONS][:, None])[:, 0] - rows[col.REWARDS]
    statistics = loss(module, rows, target=target, double_q=True)[1]
    assert statistics["td_error_mean"].item() == pytest.approx(errors.abs().mean().item(), rel=1e-5)


def test_noisy_networks_take_epsilon_0_and_learn_their_noise(built):
    with pytest.raises(ConfigError, match=r"exploration\.epsilon.*noisy"):
        build(noisy=True).experiment()
    algorithm = built(
        build(noisy=True, num_steps_sampled_before_learning_starts=1).exploration(epsilon=0)
    )
    before = algorithm.get_weights()
    algorithm.train()
    after = algorithm.get_weights()
    spreads = [name for name in before if name.endswith("_sigma")]
    assert len(spreads) == 8  # two streams of two layers, weights and biases
    assert all(not np.array_equal(before[name], after[name]) for name in spreads)


@pytest.mark.parametrize(("low", "high"), [(-10.0, 10.0), (1000.0, 1001.0), (-1e5, -99_000.0)])
def test_a_return_beyond_the_ends_of_the_distribution_goes_to_the_end_as_a_whole(low, high):
    support = torch.from_numpy(QOptions(num_atoms=51, v_min=low, v_max=high).support)
    returns = torch.tensor([low - 1.0, high, high + 1.0])
    found = project_distribution(torch.full((3, 51), 1 / 51), returns, torch.zeros(3), support)
    ends = torch.zeros(3, 51)
    ends[[0, 1, 2], [0, 50, 50]] = 1.0
    torch.testing.assert_close(found, ends)


def test_the_ends_of_the_distribution_must_be_in_order():
    with pytest.raises(ConfigError, match=r"v_min.*must be below v_max"):
        build(num_atoms=2, v_min=5.0, v_max=5.0).experiment()


def test_each_runner_has_its_own_epsilon_and_evaluation_the_least(built, shared_actors):
    algorithm = built(
        build()
        .env_runners(num_env_runners=2, num_envs_per_env_runner=1, num_cpus_per_env_runner=0.1)
        .exploration(epsilon=0.4, runner_exponent=7.0)
    )
    expected = [0.4, 0.4**8]
    told = algorithm.exploration("default_policy")
    assert [each["epsilon"] for each in told] == pytest.approx(expected)
    group = algorithm.env_runner_group
    algorithm.train()
    acting = group.foreach_env_runner(lambda runner: runner.policy.sampler.epsilon)
    assert acting == pytest.approx(expected)
    assert algorithm.evaluator.runner().policy.sampler.epsilon == pytest.approx(expected[-1])
    algorithm.resize_env_runners(3)
    told = algorithm.exploration("default_policy")
    assert [each["epsilon"] for each in told] == pytest.approx([0.4, 0.4**4.5, 0.4**8])
    assert algorithm.evaluator.runner().policy.sampler.epsilon == pytest.approx(0.4**8)
    alone = built(build().exploration(epsilon=0.4, runner_exponent=7.0))
    assert alone.exploration("default_policy") == {"epsilon": 0.4}


def test_what_no_memory_learns_from_is_refused():
    config = DQNConfig().environment("CartPole-v1")
    with pytest.raises(ConfigError, match=r"model\.use_attention.*does not replay"):
        config.model(use_attention=True).experiment()
    config = DQNConfig().environment("CartPole-v1").replay(burn_in=3)
    with pytest.raises(ConfigError, match=r"replay\.burn_in.*no memory"):
        config.experiment()
    for name, value in (("num_atoms", 2), ("noisy", True), ("hiddens", [8])):
        config = DQNConfig().environment("CartPole-v1").model(use_gru=True)
        with pytest.raises(ConfigError, match=rf"training\.{name}.*memory"):
            config.training(**{name: value}).experiment()


@pytest.mark.parametrize("memory", [{}, {"use_gru": True, "lstm_cell_size": 8, "max_seq_len": 5}])
def test_the_error_that_is_reported_is_the_mean_of_the_minibatch(built, memory):
    algorithm = built(build(num_steps_sampled_before_learning_starts=16).model(**memory))
    statistics = [statistics_of(algorithm) for _ in range(2)][-1]
    assert 0.1 < statistics["td_error_mean"] < 3.0  # rewards of 1, and values near 0


@pytest.mark.parametrize(("minibatch_size", "sequences"), [(4, 1), (8, 1), (16, 2), (23, 2)])
def test_a_minibatch_has_as_many_sequences_as_fit_and_at_least_one(
    built, monkeypatch, minibatch_size, sequences
):
    memory = {"use_gru": True, "lstm_cell_size": 8, "max_seq_len": 5}
    algorithm = built(build(minibatch_size=minibatch_size).model(**memory).replay(burn_in=3))
    drawn, sample = [], SequenceReplayBuffer.sample

    def noted(self, size, *rest, **more):
        drawn.append(size)
        return sample(self, size, *rest, **more)

    monkeypatch.setattr(SequenceReplayBuffer, "sample", noted)
    while not drawn:
        algorithm.train()
    assert set(drawn) == {sequences}


def test_no_update_is_made_before_any_sequence_is_longer_than_the_burn_in(built, tmp_path):
    """A run that is resumed has lost its buffer, and goes on in the midst of an episode."""
    config = DQNConfig().environment("MountainCar-v0").replay(burn_in=40)
    config.training(train_batch_size=32, num_steps_sampled_before_learning_starts=1)
    config.model(hidden=[8], use_lstm=True, lstm_cell_size=8, max_seq_len=5)
    first = built(config)
    assert statistics_of(first)["num_updates"] == 8
    resumed = built(config)
    first.save(tmp_path)
    resumed.restore(tmp_path)
    assert statistics_of(resumed)["num_updates"] == 0
    assert statistics_of(resumed)["num_updates"] > 0


def test_sequences_from_the_start_of_an_agents_episode_need_no_burn_in(built):
    """An agent's first transition ends at a later env step where agents take turns."""
    config = DQNConfig().environment("TakeTurns").debugging(seed=1).replay(burn_in=9)
    config.training(train_batch_size=200, num_steps_sampled_before_learning_starts=50)
    config.model(hidden=[8], use_lstm=True, lstm_cell_size=8, max_seq_len=10)
    algorithm = built(config.multi_agent(policies=["p"], agents={"*": "p"}))
    statistics = algorithm.train()["learners"]["p"]["learner_stats"]
    assert statistics["num_updates"] > 0
    assert statistics["total_loss"] > 0.0
    assert statistics["grad_norm"] > 0.0
