"""Ways to explore: what the actions are, beside formulas written out here."""

from functools import partial
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from torch import nn

from rlrun.algorithms.dqn import DQNConfig
from rlrun.algorithms.ppo import PPOConfig
from rlrun.algorithms.replay import exploration_at
from rlrun.algorithms.sac import SACConfig
from rlrun.config.problems import ConfigError
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, ExplorationConfig, ModelConfig
from rlrun.policies.action_sampling import (
    FORBIDDEN,
    CategoricalSampler,
    EpsilonGreedySampler,
    SquashedGaussianSampler,
)
from rlrun.policies.exploration import exploring_sampler
from rlrun.policies.layers import QOptions
from rlrun.policies.parameter_noise import ParameterNoise, action_distance
from rlrun.policies.q_policy import build_q_policy
from rlrun.policies.sac_policy import build_sac_policy
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest, tell_exploration

COUNT = 40_000
DISCRETE, BOX = gym.spaces.Discrete(4), gym.spaces.Box(-3.0, 5.0, (2,))
VALUES = np.array([3.0, 1.0, FORBIDDEN, 2.5], np.float32)


def exploring(sampler, space=DISCRETE, present=None, **settings):
    """A sampler of `exploration` with these settings, as a run has set it at present."""
    made = exploring_sampler(sampler, ExplorationConfig(**settings), space)
    if present is not None:
        made.set_exploration(present)
    return made


def drawn(sampler, row):
    noise = sampler.draw(np.random.default_rng(3), 1, COUNT)[0]
    return sampler.sample(np.tile(row, (COUNT, 1)), noise), noise


@pytest.mark.parametrize("temperature", [1e-6, 0.7, 40.0, 1e9])
def test_soft_q_draws_in_proportion_to_exponentials_of_allowed_values(temperature):
    greedy = EpsilonGreedySampler(4, masked=True)
    sampler = exploring(greedy, type="SoftQ", present={"temperature": temperature})

    actions, _ = drawn(sampler, VALUES)

    allowed = np.array([True, True, False, True])
    weights = np.exp((VALUES.astype(np.float64) - 3.0) / temperature) * allowed
    expected = weights / weights.sum()
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / COUNT, expected, atol=0.012)
    assert (actions != 2).all()
    logp = sampler.log_prob(np.tile(VALUES, (4, 1)), np.arange(4))
    np.testing.assert_allclose(np.exp(logp), expected, atol=1e-6)
    assert sampler.mode(VALUES[None]) == [0]


def test_soft_q_knows_the_best_of_values_whose_sum_no_float_holds():
    sampler = exploring(EpsilonGreedySampler(2), type="SoftQ", present={"temperature": 1.0})
    logp = sampler.log_prob(np.float32([[2e38, 3e38], [3e38, 2e38]]), np.array([1, 0]))
    np.testing.assert_array_equal(logp, [0.0, 0.0])


@pytest.mark.parametrize(
    ("runner", "told"), [(0, "first"), (1, "first"), (2, "second"), (5, "last"), (None, "last")]
)
def test_each_runner_is_told_its_own_exploration(runner, told):
    said = []
    policies = {"p": SimpleNamespace(set_exploration=said.append)}
    for_runners = ("first", "second", "last")
    tell_exploration(policies, {"p": for_runners, "of another runner": "other"}, runner)
    tell_exploration(policies, {"p": "common"}, runner)
    assert said == [told, "common"]


@pytest.mark.parametrize("own", [EpsilonGreedySampler(4, masked=True), CategoricalSampler(4)])
@pytest.mark.parametrize("always", [True, False])
def test_random_actions_are_uniform_over_those_allowed(own, always):
    if always:
        sampler = exploring(own, type="Random")
    elif isinstance(own, EpsilonGreedySampler):
        sampler = exploring(own, random_steps=5, present={"epsilon": 1.0})
    else:
        sampler = exploring(own, random_steps=5, present={"random": 1.0})

    actions, _ = drawn(sampler, VALUES)

    expected = np.array([1, 1, 0, 1]) / 3
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / COUNT, expected, atol=0.012)
    logp = sampler.log_prob(np.tile(VALUES, (2, 1)), np.array([0, 3]))
    np.testing.assert_allclose(logp, -np.log(3), rtol=1e-5)


def test_the_rarest_noise_of_categories_is_finite():
    always_zero = SimpleNamespace(standard_exponential=np.zeros)
    assert np.isfinite(CategoricalSampler(4).draw(always_zero, 2, 3)).all()


@pytest.mark.parametrize(("env_steps", "epsilon"), [(0, 1.0), (4, 1.0), (5, 0.3)])
def test_random_steps_of_values_are_those_of_an_epsilon_of_1(env_steps, epsilon):
    settings = ExplorationConfig(random_steps=5, epsilon=0.3)
    assert exploration_at(settings, ("EpsilonGreedy", "SoftQ"), env_steps) == {"epsilon": epsilon}


@pytest.mark.parametrize(
    ("random_steps", "present"), [(0, {}), (5, {"random": 1.0}), (4, {"random": 0.0})]
)
def test_a_policy_that_samples_is_told_how_often_it_acts_at_random(random_steps, present):
    settings = ExplorationConfig(random_steps=random_steps)
    assert exploration_at(settings, ("StochasticSampling", "GaussianNoise"), 4) == present


def test_random_steps_of_a_box_are_uniform_and_then_the_policy_acts():
    sampler = exploring(SquashedGaussianSampler(2), BOX, random_steps=5, present={"random": 1.0})
    row = np.array([2.0, -2.0, 0.0, 0.0], np.float32)

    actions, noise = drawn(sampler, row)

    for column in actions.T:
        np.testing.assert_allclose(np.sort(column), np.linspace(-1, 1, COUNT), atol=0.02)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.02
    inputs = np.tile(row, (COUNT, 1))
    densities = np.exp(sampler.log_prob(inputs, actions))
    np.testing.assert_allclose(densities, 1 / 4, rtol=1e-6)  # of a square with sides of 2
    sampler.set_exploration({"random": 0.0})
    np.testing.assert_allclose(sampler.sample(inputs, noise), np.tanh(row[:2] + noise), atol=1e-6)


@pytest.mark.parametrize("more", [{}, {"random_steps": 5}])
def test_gaussian_noise_is_added_to_the_mode_and_clipped(more):
    own, present = SquashedGaussianSampler(2), {"scale": 2.0, "random": 0.0}
    sampler = exploring(own, BOX, present, type="GaussianNoise", stddev=0.3, **more)
    row = np.array([0.5, -1.5, 1.0, 1.0], np.float32)

    actions, noise = drawn(sampler, row)

    expected = np.clip(np.tanh(row[:2]) + 0.6 * noise, -1.0, 1.0)
    np.testing.assert_allclose(actions, expected, atol=1e-6)
    np.testing.assert_allclose(sampler.mode(row[None])[0], np.tanh(row[:2]), atol=1e-6)


def test_ornstein_uhlenbeck_noise_is_the_process_of_each_episode():
    theta, sigma, scale = 0.2, 0.1, 0.5
    noise = {"type": "OrnsteinUhlenbeckNoise", "theta": theta, "sigma": sigma, "scale": scale}
    config = SACConfig().environment("Pendulum-v1").exploration(**noise).debugging(seed=4)
    config = config.env_runners(num_envs_per_env_runner=20).training(train_batch_size=4000)
    built = config.build()
    try:
        built.set_weights({k: np.zeros_like(v) for k, v in built.get_weights().items()})
        batch = built.sample()  # with zero weights every mode is 0
    finally:
        built.stop()
    process = batch["actions"].reshape(20, 200) / scale
    added = (process[:, 1:] - (1 - theta) * process[:, :-1]) / sigma
    assert abs(added.mean()) < 0.05
    assert added.std() == pytest.approx(1.0, abs=0.03)
    assert abs(np.corrcoef(added[:, 1:].ravel(), added[:, :-1].ravel())[0, 1]) < 0.05
    stationary = sigma / np.sqrt(theta * (2 - theta))
    assert process.std() == pytest.approx(stationary, rel=0.1)


def test_random_first_steps_are_independent_even_where_noise_lasts():
    noise = {"type": "OrnsteinUhlenbeckNoise", "random_steps": 4000, "theta": 0.2}
    config = SACConfig().environment("Pendulum-v1").exploration(**noise).debugging(seed=4)
    config = config.env_runners(num_envs_per_env_runner=20).training(train_batch_size=4000)
    built = config.build()
    try:
        first, second = (built.sample()["actions"].reshape(20, 200) for _ in range(2))
    finally:
        built.stop()
    assert abs(np.corrcoef(first[:, 1:].ravel(), first[:, :-1].ravel())[0, 1]) < 0.05
    assert first.std() == pytest.approx(np.sqrt(1 / 3), abs=0.02)  # uniform in [-1, 1]
    assert np.corrcoef(second[:, 1:].ravel(), second[:, :-1].ravel())[0, 1] > 0.7


SEEN = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)


def perturbing(activation, kind="DQN", initial=0.5, **settings):
    """A policy with noise in its weights, of torch for activations that numpy lacks."""
    model = ModelConfig(hidden=(8,), activation=activation)
    exploration = ExplorationConfig(type="ParameterNoise", initial_stddev=initial, **settings)
    if kind == "DQN":
        policy = build_q_policy(SPACE, DISCRETE, model, options=QOptions(), exploration=exploration)
        policy.set_exploration({"epsilon": 0.2})
    else:
        policy = build_sac_policy(SPACE, BOX, model, exploration=exploration)
        policy.set_exploration({"scale": 0.5, "random": 0.0})
    policy.set_weights(np.random.default_rng(1).normal(size=len(policy.get_weights())))
    return policy, ParameterNoise(policy, policy.weight_stddev)


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_perturbed_weights_act_for_a_fragment_and_keep_their_noise_for_an_episode(activation):
    policy, noise = perturbing(activation)
    own, rng = policy.get_weights(), np.random.default_rng(2)
    added, resumed_from = [], None
    for renew in (False, True, False):
        stddev = noise.stddev
        noise.begin_fragment(rng)
        added.append((policy.get_weights() - own) / stddev)
        noise.seen = SEEN
        noise.end_fragment(renew=renew)
        assert (policy.get_weights() == own).all()
        resumed_from = resumed_from or noise.get_state()
    np.testing.assert_allclose(added[0], added[1], atol=1e-5)
    assert abs(np.corrcoef(added[1], added[2])[0, 1]) < 0.5
    assert added[0].std() == pytest.approx(1.0, abs=0.25)
    again, other = perturbing(activation)
    other.set_state(resumed_from)
    other.begin_fragment(np.random.default_rng(7))
    np.testing.assert_allclose((again.get_weights() - own) / other.stddev, added[1], atol=1e-5)


def perturbed_runner():
    """Two sub-environments, and noise in the weights."""
    exploration = ExplorationConfig(type="ParameterNoise")
    factory = partial(build_q_policy, options=QOptions(), exploration=exploration)
    settings = EnvRunnersConfig(num_envs_per_env_runner=2)
    return EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1"), settings, policy_factory=factory))


def test_a_restored_runner_goes_on_with_its_noise_in_weights():
    runner, other = perturbed_runner(), perturbed_runner()
    runner.sample_fragment(SampleRequest(0, 3))
    other.set_weights(runner.get_weights())
    other.set_state(runner.get_state())
    one, two = (each.sample_fragment(SampleRequest(1, 3)) for each in (runner, other))
    np.testing.assert_array_equal(one.batch["action_dist_inputs"], two.batch["action_dist_inputs"])


def test_noise_in_weights_is_renewed_when_the_first_sub_environment_ends_an_episode():
    runner, ended = perturbed_runner(), set()
    for fragment in range(30):
        reply = runner.sample_fragment(SampleRequest(fragment, 3))
        envs = {episode.env_index for episode in reply.episodes}
        noise = runner.get_state()["policies"]["default_policy"]["noise"]["parameters"]
        assert (noise["seed"] is None) == (0 in envs)
        ended.add(frozenset(envs))
    assert {frozenset({0}), frozenset({1})} <= ended


@pytest.mark.parametrize("kind", ["DQN", "SAC"])
@pytest.mark.parametrize("stddev", [1e-3, 3.0])
def test_noise_in_weights_is_adapted_to_the_change_of_actions_aimed_for(kind, stddev):
    policy, noise = perturbing("relu", kind, stddev, **({"stddev": 0.2} if kind == "SAC" else {}))
    noise.begin_fragment(np.random.default_rng(2))
    perturbed = policy.compute_actions(SEEN, explore=False)[2]["action_dist_inputs"]
    noise.seen = SEEN
    noise.end_fragment(renew=False)
    clean = policy.compute_actions(SEEN, explore=False)[2]["action_dist_inputs"]

    if kind == "DQN":
        clean, perturbed = clean.astype(np.float64), perturbed.astype(np.float64)
        p, q = (np.exp(v) / np.exp(v).sum(1, keepdims=True) for v in (clean, perturbed))
        distance, target = (p * np.log(p / q)).sum(1).mean(), -np.log(1 - 0.2 + 0.2 / 4)
    else:
        distance = np.sqrt(((np.tanh(clean[:, :2]) - np.tanh(perturbed[:, :2])) ** 2).mean())
        target = 0.5 * 0.2
    found = action_distance(policy.sampler, clean, perturbed)
    assert found == pytest.approx((distance, target), rel=1e-5)
    assert noise.stddev == pytest.approx(stddev * (1.01 if distance <= target else 1 / 1.01))
    assert (distance <= target) == (stddev < 1)


@pytest.mark.parametrize(
    ("kind", "settings", "present"),
    [("DQN", {}, {"epsilon": 1.0}), ("SAC", {"random_steps": 9}, {"random": 1.0, "scale": 1.0})],
)
def test_noise_in_weights_stays_while_all_actions_are_random(kind, settings, present):
    policy, noise = perturbing("relu", kind, **settings)
    policy.set_exploration(present)
    noise.begin_fragment(np.random.default_rng(2))
    noise.seen = SEEN
    noise.end_fragment(renew=False)
    assert noise.stddev == 0.5


class Normalised(nn.Module):
    def __init__(self, space):
        super().__init__()
        self.output_size = 4
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))

    def forward(self, obs):
        return self.layers(obs)


def test_layer_normalisation_is_not_perturbed():
    model = ModelConfig(use=f"{__name__}:Normalised")
    exploration = ExplorationConfig(type="ParameterNoise")
    policy = build_q_policy(SPACE, DISCRETE, model, options=QOptions(), exploration=exploration)
    own = policy.get_weights()
    ParameterNoise(policy, 1.0).begin_fragment(np.random.default_rng(0))
    same = policy.get_weights() == own
    for name, (offset, shape) in policy.layout.items():
        is_norm = "layers.1." in name
        assert same[offset : offset + np.prod(shape)].all() == is_norm, name


@pytest.mark.parametrize("several", [False, True])
def test_learned_weights_evaluation_and_actions_for_users_know_no_noise_in_weights(several):
    """Runners act with other weights while they sample, and with these afterwards."""
    env = "MultiAgentCartPole" if several else "CartPole-v1"
    noise = {"type": "ParameterNoise", "epsilon": 0.0, "initial_stddev": 5.0}
    config = DQNConfig().environment(env).exploration(**noise).debugging(seed=1)
    config = config.training(train_batch_size=64, num_steps_sampled_before_learning_starts=1000)
    config = config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=16)
    built = (config.multi_agent(policies=["p"]) if several else config).build()
    try:
        policy_id = "p" if several else "default_policy"
        before = built.get_weights()
        built.train()
        batch = built.sample()
        rows = batch.policy_batches["p"] if several else batch
        best, explored = (
            built.acting_policy(policy_id, num_envs=len(rows), explore=explore).compute_actions(
                rows["obs"]
            )
            for explore in (False, True)
        )
        assert (best == explored).all()
        assert (best != rows["actions"]).mean() > 0.1
        assert all((value == before[name]).all() for name, value in built.get_weights().items())
    finally:
        built.stop()


def test_weights_of_a_policy_are_its_own_again_where_another_has_no_noise_in_them():
    explorations = {"agent_0": {"type": "ParameterNoise", "epsilon": 0.0}, "agent_1": {}}
    policies = {name: {"exploration": settings} for name, settings in explorations.items()}
    config = DQNConfig().environment("MultiAgentCartPole").multi_agent(policies=policies)
    built = config.training(train_batch_size=64).debugging(seed=1).build()
    try:
        built.sample()
        (found,) = built.env_runner_group.foreach_env_runner(lambda runner: runner.get_weights())
        for name, weights in built.policies.acting_weights.items():
            np.testing.assert_array_equal(found[name], weights)
    finally:
        built.stop()


@pytest.mark.parametrize("kind", ["GaussianNoise", "OrnsteinUhlenbeckNoise", "ParameterNoise"])
def test_noise_on_discrete_actions_is_refused(kind):
    with pytest.raises(ConfigError, match=rf"exploration.type: {kind} cannot draw .*Discrete\(4\)"):
        exploring(CategoricalSampler(4), type=kind)


@pytest.mark.parametrize(
    ("config", "exploration", "training", "says"),
    [
        (SACConfig, {"type": "SoftQ"}, {}, "exploration.type: SAC explores by Stochastic"),
        (DQNConfig, {"type": "GaussianNoise"}, {}, "type: DQN explores by EpsilonGreedy or SoftQ"),
        (DQNConfig, {"temperature": 2.0}, {}, "temperature: EpsilonGreedy does not use it"),
        (DQNConfig, {"type": "SoftQ", "epsilon": 0.1}, {}, "epsilon: SoftQ does not use it"),
        (DQNConfig, {"type": "SoftQ", "temperature": 0.0}, {}, "temperature: expected a number"),
        (DQNConfig, {"type": "Random", "random_steps": 9}, {}, "random_steps: all actions are"),
        (DQNConfig, {"type": "SoftQ"}, {"noisy": True}, "exploration.type: noisy weights"),
        (
            SACConfig,
            {"type": "Random"},
            {"noise_correlation": 0.5},
            "noise_correlation: it does not apply",
        ),
        (PPOConfig, {"type": "Random"}, {}, "exploration: "),
        (DQNConfig, {"type": "ParameterNoise", "stddev": 0.2}, {}, "stddev: ParameterNoise does"),
        (SACConfig, {"type": "ParameterNoise", "epsilon": 0.2}, {}, "epsilon: ParameterNoise does"),
        (DQNConfig, {"type": "ParameterNoise"}, {"noisy": True}, "type: noisy weights"),
        (DQNConfig, {"initial_stddev": 2.0}, {}, "initial_stddev: EpsilonGreedy does not use it"),
    ],
)
def test_what_does_not_fit_an_algorithm_is_refused(config, exploration, training, says):
    wrong = config().environment("CartPole-v1").exploration(**exploration).training(**training)
    with pytest.raises(ConfigError, match=says):
        wrong.experiment()
