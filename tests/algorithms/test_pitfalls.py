"""Traps that implementations fall into where several parts meet; `grep pitfall` finds the others.

The numbers are those of a list of the field's known implementation errors, one test for each.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun import A2CConfig, A3CConfig, DQNConfig, EnvRunner, PPOConfig, SACConfig
from rlrun.algorithms import dqn, ppo
from rlrun.algorithms.ppo import PPOTraining, ppo_loss
from rlrun.algorithms.targets import TargetNetwork
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, LearnersConfig, ModelConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner
from rlrun.learning.returns import add_advantages
from rlrun.learning.vtrace import VTraceSettings, add_vtrace
from rlrun.policies.layers import QOptions
from rlrun.policies.q_network import build_q_network
from rlrun.policies.rl_module import ActorCritic
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest, reward_pipeline

OBS_SPACE = gym.spaces.Box(-100, 100, (1,), np.float32)


@pytest.fixture
def built():
    made = []

    def make(config, env):
        made.append(config.environment(env).model(hidden=[8]).debugging(seed=3).build())
        return made[-1]

    yield make
    for algorithm in made:
        algorithm.stop()


def statistics_of(algorithm):
    return algorithm.train()["learners"]["default_policy"]["learner_stats"]


@pytest.mark.parametrize("config", [PPOConfig, A2CConfig, A3CConfig])
def test_pitfall_2_adams_epsilon_is_1e_5(built, config):
    algorithm = built(config(), "CartPole-v1")
    assert algorithm.learner.optimizer._eps == 1e-5


@pytest.fixture
def ppo_minibatches(monkeypatch):
    """Each minibatch that PPO learns from, and the statistics of it."""
    seen, real = [], ppo.ppo_gradient

    def spy(module, rows, **arguments):
        statistics = real(module, rows, **arguments)
        seen.append((rows, {name: float(value) for name, value in statistics.items()}))
        return statistics

    monkeypatch.setattr(ppo, "ppo_gradient", spy)
    return seen


@pytest.mark.parametrize("how", ["minibatch", "batch", None])
def test_pitfall_4_advantages_are_standardized_in_each_minibatch_and_targets_never(
    built, ppo_minibatches, how
):
    settings = {"train_batch_size": 256, "minibatch_size": 64, "num_epochs": 1}
    assert PPOTraining().normalize_advantages == "minibatch"
    algorithm = built(PPOConfig().training(**settings, normalize_advantages=how), "CartPole-v1")
    ppo_minibatches.clear()  # of the trial that finds out which columns are needed
    algorithm.train()
    assert len(ppo_minibatches) == 4
    parts = [rows[col.ADVANTAGES] for rows, _ in ppo_minibatches]
    targets = torch.cat([rows[col.VALUE_TARGETS] for rows, _ in ppo_minibatches])
    assert targets.min() > 0.5  # a reward of 1 for each step, and values near 0
    assert targets.mean() > 5
    for each in parts if how == "minibatch" else [torch.cat(parts)]:
        centred = abs(each.mean().item()) < 1e-5
        assert centred == (how is not None)
        assert (abs(each.std(correction=0).item() - 1.0) < 1e-4) == (how is not None)
    if how != "minibatch":
        assert max(abs(part.mean().item()) for part in parts) > 1e-3


def test_pitfall_8_the_global_norm_is_bounded_by_one_half_unless_told_otherwise():
    assert PPOTraining().grad_clip == 0.5
    assert PPOTraining().grad_clip_by == "global_norm"


class ValueIsTheObservation(ActorCritic):
    """V(s) is the number that is observed."""

    def forward_train(self, batch):
        return {**super().forward_train(batch), col.VF_PREDS: batch[col.OBS][:, 0]}


def test_pitfalls_5_18_20_targets_value_the_final_observation_and_know_no_normalisation():
    """Two lanes: a truncation whose next episode begins at 5, and a fragment that is cut."""
    obs, new_obs = [1.0, 2.0, 5.0, 9.0], [2.0, 70.0, 6.0, 30.0]
    batch = SampleBatch(
        {
            col.OBS: np.array(obs, np.float32)[:, None],
            col.NEXT_OBS: np.array(new_obs, np.float32)[:, None],
            col.ACTIONS: np.zeros(4, np.int64),
            col.REWARDS: np.array([1.0, 2.0, 3.0, 4.0], np.float32),
            col.TERMINATEDS: np.zeros(4, np.bool_),
            col.TRUNCATEDS: np.array([False, True, False, False]),
            col.UNROLL_ID: np.array([0, 0, 0, 1]),
        }
    )
    module = ValueIsTheObservation(OBS_SPACE, gym.spaces.Discrete(2), ModelConfig(hidden=(4,)))
    learner = Learner(module, PPOTraining(), LearnersConfig())
    rows = learner.load(batch, (col.ACTIONS,))
    add_advantages(rows, batch, module, 0.5, 0.9)
    second = 2.0 + 0.5 * 70.0 - 2.0
    expected = [
        (1.0 + 0.5 * 2.0 - 1.0) + 0.5 * 0.9 * second,
        second,
        3.0 + 0.5 * 6.0 - 5.0,
        4.0 + 0.5 * 30.0 - 9.0,
    ]
    np.testing.assert_allclose(rows.columns[col.ADVANTAGES], expected, rtol=1e-6)
    targets = np.array(expected) + obs
    np.testing.assert_allclose(rows.columns[col.VALUE_TARGETS], targets, rtol=1e-6)


def test_pitfall_7_value_errors_are_not_clipped_unless_asked_for():
    assert PPOTraining().vf_clip_param is None


def test_pitfall_10_approx_kl_is_never_negative_and_ends_the_update(built):
    module = ActorCritic(OBS_SPACE, gym.spaces.Discrete(2), ModelConfig(hidden=(4,)))
    rows = {
        col.OBS: torch.randn(6, 1),
        col.ACTIONS: torch.tensor([0, 1, 0, 1, 0, 1]),
        col.ACTION_LOGP: torch.linspace(-2.0, -0.1, 6),
        **{name: torch.randn(6) for name in (col.ADVANTAGES, col.VALUE_TARGETS, col.VF_PREDS)},
    }
    arguments = {"clip_param": 0.2, "vf_loss_coeff": 0.5, "vf_clip_param": None}
    _, statistics = ppo_loss(module, rows, **arguments, entropy_coeff=0.0, kl_coeff=0.0)
    with torch.no_grad():
        inputs = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
    logps = module.distribution.logp(inputs, rows[col.ACTIONS]).tolist()
    ratios = [np.exp(a - b) for a, b in zip(logps, rows[col.ACTION_LOGP].tolist(), strict=True)]
    expected = np.mean([(ratio - 1) - np.log(ratio) for ratio in ratios])
    assert statistics["approx_kl"].item() == pytest.approx(expected, rel=1e-4)
    assert expected > 0

    settings = {"train_batch_size": 64, "minibatch_size": 16, "num_epochs": 5, "lr": 0.01}
    patient = built(PPOConfig().training(**settings, target_kl=1e6), "CartPole-v1")
    strict = built(PPOConfig().training(**settings, target_kl=1e-12), "CartPole-v1")
    assert statistics_of(patient)["num_updates"] == 20
    assert statistics_of(strict)["num_updates"] == 1  # the first minibatch moves nothing yet


def test_pitfall_10_the_update_ends_at_one_and_a_half_times_the_target(built, ppo_minibatches):
    settings = {"train_batch_size": 64, "minibatch_size": 16, "num_epochs": 5, "lr": 0.01}
    patient = built(PPOConfig().training(**settings), "CartPole-v1")
    ppo_minibatches.clear()
    patient.train()
    kls = [statistics["approx_kl"] for _, statistics in ppo_minibatches]
    limit = 0.9 * max(kls)
    made = next(i for i, kl in enumerate(kls) if kl > limit)
    assert any(kl > limit / 1.5 for kl in kls[:made]), "the example tells 1.5 from nothing"
    strict = built(PPOConfig().training(**settings, target_kl=limit / 1.5), "CartPole-v1")
    assert statistics_of(strict)["num_updates"] == made


class DropsOut(torch.nn.Module):
    """Half of the features, while it learns."""

    output_size = 16

    def __init__(self, observation_space):
        super().__init__()
        self.layer, self.dropout = torch.nn.Linear(4, 16), torch.nn.Dropout(0.5)

    def forward(self, obs):
        return self.dropout(self.layer(obs))


def test_pitfall_11_what_a_loss_compares_with_is_computed_without_dropout_as_actions_are(built):
    config = PPOConfig().training(train_batch_size=64, minibatch_size=64)
    algorithm = built(config.model(use=f"{__name__}:DropsOut"), "CartPole-v1")
    algorithm.unneeded = {}
    module = algorithm.learner.module
    with torch.no_grad():  # logits far enough apart for dropout to matter
        module.pi_head.last.weight.mul_(300.0)
    algorithm.sync_weights()
    batch = algorithm.sample()
    rows = algorithm.learner.load(batch, (col.ACTIONS,))
    add_advantages(rows, batch, module, 0.99, 0.95)
    np.testing.assert_allclose(rows.columns[col.ACTION_LOGP], batch[col.ACTION_LOGP], atol=1e-4)
    first = rows.columns[col.VALUE_TARGETS]
    add_advantages(rows, batch, module, 0.99, 0.95)
    assert torch.equal(rows.columns[col.VALUE_TARGETS], first)
    traced = add_vtrace(rows, batch, module, VTraceSettings(0.99))
    assert traced["mean_ratio"] == pytest.approx(1.0, abs=1e-4)
    assert module.training  # it learns with dropout all the same


def test_a_target_network_drops_nothing_out():
    space = gym.spaces.Box(-1, 1, (4,), np.float32)
    model = ModelConfig(use=f"{__name__}:DropsOut")
    network, copy = (
        build_q_network(space, gym.spaces.Discrete(2), model, options=QOptions()) for _ in range(2)
    )
    learner = Learner(network, PPOTraining(), LearnersConfig(device="cpu"))
    target, rows = TargetNetwork(copy, learner).module, {col.OBS: torch.randn(5, 4)}
    first, second = (target.forward_train(rows)[col.ACTION_DIST_INPUTS] for _ in range(2))
    assert torch.equal(first, second)


def test_pitfall_13_the_standard_deviation_is_1_at_first_whatever_is_observed():
    actions = gym.spaces.Box(-1, 1, (2,), np.float32)
    module = ActorCritic(OBS_SPACE, actions, ModelConfig(hidden=(4,)))
    inputs = module.forward_train({col.OBS: torch.randn(5, 1)})[col.ACTION_DIST_INPUTS]
    assert (inputs[:, 2:] == 0.0).all()
    assert inputs[:, :2].std() > 0


class ShowsItsAction(gym.Env[Any, Any]):
    """Observes the action that it was given; never ends."""

    observation_space = gym.spaces.Box(-100, 100, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 3, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return action.copy(), 0.0, False, False, {}


@pytest.mark.parametrize("how", [{}, {"normalize_actions": False, "clip_actions": True}])
def test_pitfall_14_the_environment_gets_bounded_actions_and_the_batch_the_policys_own(built, how):
    config = PPOConfig().training(train_batch_size=512).connectors(**how)
    algorithm = built(config, f"{__name__}:ShowsItsAction")
    algorithm.unneeded = {}
    batch = algorithm.sample()
    actions = batch[col.ACTIONS][:, 0]
    assert actions.min() < -1.5
    given = np.clip(actions if how else 2.0 * actions + 1.0, -1.0, 3.0)
    np.testing.assert_allclose(batch[col.NEXT_OBS][:, 0], given, rtol=1e-6)
    mean, log_std = batch[col.ACTION_DIST_INPUTS].T
    logp = -0.5 * ((actions - mean) / np.exp(log_std)) ** 2 - log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(batch[col.ACTION_LOGP], logp, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("gamma", "low", "high"), [(0.5, 1.0, 2.0), (1.0, 4.0, 100.0)])
def test_pitfall_15_the_return_is_discounted_as_it_is_learned(built, gamma, low, high):
    config = PPOConfig().training(train_batch_size=256, gamma=gamma, minibatch_size=256)
    algorithm = built(config.connectors(normalize_rewards=True), "CartPole-v1")
    algorithm.train()
    # Of rewards of 1, discounted by a half, no return comes to 2.
    rewards = algorithm.policies.connectors.get_state()["default_policy"]["rewards"]
    assert low < rewards["stat"]["mean"] < high


@pytest.mark.parametrize(
    ("env", "preprocessor", "expected"),
    [
        ("ALE/Pong-v5", "deepmind", [1.0, -1.0, 0.0]),
        ("ALE/Pong-v5", None, [4.0, -0.5, 0.0]),
        ("CartPole-v1", "deepmind", [4.0, -0.5, 0.0]),
    ],
)
def test_pitfall_16_of_atari_alone_learning_sees_the_rewards_sign(env, preprocessor, expected):
    pytest.importorskip("ale_py")
    settings = EnvRunnersConfig(preprocessor_pref=preprocessor)
    rewards = reward_pipeline(RunnerSpec(EnvSpec(use=env), settings), num_lanes=3)
    nobody = np.zeros(3, np.bool_)
    assert rewards(np.array([4.0, -0.5, 0.0]), nobody, nobody).tolist() == expected


class ReusesItsBuffer(gym.Env[Any, Any]):
    """Counts its steps in an array that it hands out again and again."""

    observation_space = gym.spaces.Box(-1, 100, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.seen = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen[:] = 0
        return self.seen, {}

    def step(self, action):
        self.seen += 1
        return self.seen, 0.0, bool(self.seen[0] == 4), False, {}


def test_pitfall_27_observations_that_an_environment_overwrites_are_copied():
    spec = RunnerSpec(
        EnvSpec(use=f"{__name__}:ReusesItsBuffer"), EnvRunnersConfig(num_envs_per_env_runner=2)
    )
    runner = EnvRunner(spec)
    weights = np.zeros(runner.policy.num_parameters, np.float32)
    batch = runner.sample_fragment(SampleRequest(0, 10, 1), weights).batch
    assert batch[col.OBS][:, 0].tolist() == 2 * [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert batch[col.NEXT_OBS][:, 0].tolist() == 2 * [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]


@pytest.mark.parametrize("memory", [False, True])
def test_pitfall_36_priorities_are_unweighted_errors_and_a_little_more(built, memory):
    config = DQNConfig().training(
        train_batch_size=64, minibatch_size=16, num_steps_sampled_before_learning_starts=1
    )
    config = config.replay(prioritized=True, beta=1.0, epsilon=0.25)
    algorithm = built(config.model(use_lstm=memory, lstm_cell_size=8, max_seq_len=4), "CartPole-v1")
    algorithm.train()
    buffer, step, found = algorithm.replay.buffers["default_policy"], algorithm.learner.step, []
    expected, report = [], buffer.update_priorities

    def spy_on_step(rows, *arguments, **settings):
        assert rows[col.WEIGHTS].unique().numel() > 1
        statistics = step(rows, *arguments, **settings)
        errors = statistics["td_errors"].abs().double()
        if memory:  # eta max + (1 - eta) mean of each sequence
            sequences = errors.split((rows[col.SEQ_LENS] - 1).tolist())
            errors = torch.stack([0.9 * each.max() + 0.1 * each.mean() for each in sequences])
        expected.append(errors.numpy() + 0.25)
        return statistics

    algorithm.learner.step = spy_on_step
    buffer.update_priorities = lambda ids, values: found.append(values) or report(ids, values)
    algorithm.train()
    assert len(found) == len(expected) > 4
    for mine, slow in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, slow, rtol=1e-5)


def test_pitfall_43_networks_and_updates_have_noise_of_their_own(built, monkeypatch):
    config = (
        DQNConfig()
        .exploration(epsilon=0)
        .training(
            noisy=True,
            train_batch_size=64,
            minibatch_size=16,
            num_steps_sampled_before_learning_starts=1,
        )
    )
    seen, real = [], dqn.dqn_loss

    def spy(module, rows, *, target, **arguments):
        seen.extend(network.value._noise[0][0].clone() for network in (module, target))
        return real(module, rows, target=target, **arguments)

    monkeypatch.setattr(dqn, "dqn_loss", spy)
    algorithm = built(config, "CartPole-v1")
    seen.clear()  # of the trial that finds out which columns are needed
    updates = int(statistics_of(algorithm)["num_updates"])
    assert len(seen) == 2 * updates > 20
    assert len({tuple(noise.flatten().tolist()) for noise in seen}) == len(seen)


def test_pitfall_37_beta_follows_the_env_steps_of_the_run_and_survives_a_restore(built):
    def make():
        config = DQNConfig().training(
            train_batch_size=64, minibatch_size=16, num_steps_sampled_before_learning_starts=1
        )
        config = config.replay(prioritized=True, beta=[[0, 0.4], [256, 1.0]])
        return built(config, "CartPole-v1")

    def betas_of(algorithm, iterations):
        seen, sample = [], algorithm.replay.buffer.sample

        def spy(num_items, rng, *, policies, beta):
            seen.append(beta)
            return sample(num_items, rng, policies=policies, beta=beta)

        algorithm.replay.buffer.sample = spy
        for _ in range(iterations):
            algorithm.train()
        del algorithm.replay.buffer.sample
        return seen

    straight = make()
    first = betas_of(straight, 2)
    assert first == sorted(first)
    assert 0.4 < first[0] < first[-1] == pytest.approx(0.7)
    resumed = make()
    resumed.set_weights(straight.get_weights())
    resumed.set_state(straight.get_state())
    later = betas_of(resumed, 3)
    assert 0.7 < later[0] < later[-1] == 1.0


def test_pitfall_47_entropy_is_in_units_of_the_squashed_action_whatever_the_bounds(built):
    """Stretching the bounds of actions changes nothing in what is learned."""
    settings = {
        "train_batch_size": 60,
        "minibatch_size": 16,
        "training_intensity": 16,
        "num_steps_sampled_before_learning_starts": 10,
    }
    algorithms = [
        built(SACConfig().training(**settings), env)
        for env in ("Pendulum-v1", "rlrun.envs.examples:StretchedPendulum")
    ]
    for algorithm in algorithms:
        assert algorithm.replay.updaters["default_policy"].temperature.target_entropy == -1.0
    rows = [statistics_of(algorithm) for algorithm in algorithms]
    assert rows[0]["num_updates"] == 51
    assert rows[0] == pytest.approx(rows[1], rel=1e-3)


def test_pitfall_71_env_steps_are_decisions_of_which_a_game_has_four_frames():
    pytest.importorskip("ale_py")
    spec = RunnerSpec(EnvSpec(use="ALE/Pong-v5"), EnvRunnersConfig(), model=ModelConfig())
    runner = EnvRunner(spec)
    game = runner.envs.envs[0].unwrapped.ale
    weights = runner.policy.get_weights()
    runner.sample_fragment(SampleRequest(0, 1, 1), weights)
    before = game.getFrameNumber()
    reply = runner.sample_fragment(SampleRequest(1, 50, 1), weights)
    assert reply.env_steps == len(reply.batch) == 50
    assert game.getFrameNumber() - before == 4 * 50
