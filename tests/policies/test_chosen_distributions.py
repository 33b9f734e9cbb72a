"""Distributions that a model chooses: what is sampled is what is learned."""

import gymnasium as gym
import numpy as np
import pytest
import torch
import torch.distributions as td

from rlrun import Distribution, PPOConfig, RLModule
from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.chosen_distributions import module_distribution
from rlrun.policies.numpy_policy import build_policy
from rlrun.policies.torch_policy import TorchPolicy

BOX = gym.spaces.Box(-1, 1, (2,))
DISCRETE = gym.spaces.MultiDiscrete([2, 3])
NESTED = gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.MultiDiscrete([3, 2])))
OBSERVATIONS = gym.spaces.Box(-1, 1, (3,))
N = 200_000


def made(name: str, space: gym.Space) -> Distribution:
    distribution = module_distribution(space, name)
    if name == "autoregressive":
        for weights in distribution.given:
            torch.nn.init.normal_(weights, generator=torch.Generator().manual_seed(0))
    return distribution


def drawn(distribution: Distribution, inputs: torch.Tensor) -> torch.Tensor:
    sampler = distribution.numpy_sampler() or distribution
    noise = sampler.draw(np.random.default_rng(0), 1, len(inputs))[0]
    if sampler is distribution:
        return distribution.sample(inputs, torch.from_numpy(noise)).detach()
    return torch.from_numpy(sampler.sample(inputs.numpy(), noise))


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("beta", [0.4, -0.7, -0.3, 0.2]),
        ("beta", [6.0, 3.0, 9.0, 2.5]),  # concentrations far above 1
        ("squashed_gaussian", [0.4, -0.7, -0.3, 0.2]),
    ],
)
def test_bounded_samples_follow_the_density_that_is_learned(name: str, inputs: list[float]) -> None:
    distribution, inputs = made(name, BOX), torch.tensor(inputs)
    actions = drawn(distribution, inputs.expand(N, -1))
    assert (actions.abs() <= 1).all()
    grid = torch.linspace(-0.9995, 0.9995, 2000)
    for k in range(2):
        both = torch.stack((grid, torch.zeros_like(grid)), -1).roll(k, -1)
        density = distribution.logp(inputs.expand(len(grid), -1), both).exp()
        cumulative = density.cumsum(0) / density.sum()
        for place in (300, 1000, 1700):
            share = (actions[:, k] <= grid[place]).float().mean()
            assert float(share) == pytest.approx(float(cumulative[place]), abs=5e-3)
    logp, entropy = distribution.logp_entropy(inputs.expand(N, -1), actions)
    assert float(-logp.mean()) == pytest.approx(float(entropy[0]), abs=1e-2)


@pytest.mark.parametrize("name", ["beta", "squashed_gaussian"])
def test_bounded_kl_is_the_mean_difference_of_log_probabilities(name: str) -> None:
    distribution = made(name, BOX)
    p, q = torch.tensor([0.4, -0.7, -0.3, 0.2]), torch.tensor([-0.5, 0.1, 0.2, -0.2])
    actions = drawn(distribution, p.expand(N, -1))
    difference = distribution.logp(p.expand(N, -1), actions) - distribution.logp(
        q.expand(N, -1), actions
    )
    kl = float(distribution.kl(p[None], q[None]))
    assert kl == pytest.approx(float(difference.mean()), abs=2e-2)


def test_an_action_at_a_bound_is_as_likely_as_the_nearest_number_inside() -> None:
    distribution = made("squashed_gaussian", gym.spaces.Box(-1, 1, (1,)))
    for bound in (-1.0, 1.0):
        inside = np.nextafter(np.float32(bound), np.float32(0))
        at, near = (
            distribution.logp(torch.tensor([[2.0, 0.5]]), torch.tensor([[x]]))
            for x in (bound, inside)
        )
        assert torch.isfinite(at)
        assert at == near
        sampler, inputs = distribution.numpy_sampler(), np.float32([[2.0, 0.5]])
        for x in (bound, inside):
            acted = sampler.log_prob(inputs, np.float32([[x]]))
            assert acted.item() == pytest.approx(at.item(), rel=1e-5)


def test_beta_is_that_of_torch_between_other_bounds() -> None:
    inputs, actions = torch.randn(6, 4), torch.rand(6, 2) * 1.8 - 0.9
    parameters = 1 + torch.nn.functional.softplus(inputs)
    expected = td.TransformedDistribution(
        td.Beta(parameters[:, :2], parameters[:, 2:]), td.AffineTransform(-1.0, 2.0)
    )
    logp = made("beta", BOX).logp(inputs, actions)
    torch.testing.assert_close(logp, expected.log_prob(actions).sum(-1))


def test_the_mode_of_beta_is_its_likeliest_action() -> None:
    distribution = made("beta", gym.spaces.Box(-1, 1, (1,)))
    actions = torch.linspace(-0.999, 0.999, 1999)[:, None]
    for inputs in torch.tensor([[0.4, -0.7], [3.0, 0.5], [-1.0, 2.0]]):
        likeliest = distribution.logp(inputs.expand(len(actions), -1), actions).argmax()
        mode = distribution.mode(inputs[None]).item()
        assert mode == pytest.approx(actions[likeliest].item(), abs=2e-3)


@pytest.mark.parametrize("lowest", [-10.0, -17.0, -30.0])
def test_the_mode_of_a_beta_that_is_nearly_uniform_follows_the_inputs(lowest: float) -> None:
    inputs = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]]) + lowest
    modes = made("beta", gym.spaces.Box(-1, 1, (1,))).mode(inputs)[:, 0]
    share = np.e / (1.0 + np.e)  # softplus of a low input is its exponential
    np.testing.assert_allclose(modes, [0.0, 1.0 - 2.0 * share, 2.0 * share - 1.0], atol=1e-3)


def test_the_mode_of_beta_is_a_number_for_all_inputs() -> None:
    inputs = torch.tensor([-1e30, -200.0, -17.0, 0.0, 1e30])
    pairs = torch.cartesian_prod(inputs, inputs)
    modes = made("beta", gym.spaces.Box(-1, 1, (1,))).mode(pairs)
    assert (modes.abs() <= 1).all()


@pytest.mark.parametrize("name", ["beta", "squashed_gaussian"])
def test_each_of_three_bounded_dimensions_is_as_if_it_were_alone(name: str) -> None:
    alone, together = (made(name, gym.spaces.Box(-1, 1, (n,))) for n in (1, 3))
    inputs = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    parts = [inputs[:, [k, 3 + k]] for k in range(3)]
    actions = drawn(together, inputs)
    assert actions.shape == (200, 3)
    columns = actions.split(1, -1)
    logp = sum(alone.logp(*each) for each in zip(parts, columns, strict=True))
    torch.testing.assert_close(together.logp(inputs, actions), logp, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together.entropy(inputs), sum(map(alone.entropy, parts)))
    kl = sum(alone.kl(part, part.flip(0)) for part in parts)
    torch.testing.assert_close(together.kl(inputs, inputs.flip(0)), kl, rtol=1e-4, atol=1e-4)
    if name == "beta":
        torch.testing.assert_close(together.mode(inputs), torch.cat([*map(alone.mode, parts)], -1))


@pytest.mark.parametrize("space", [DISCRETE, NESTED])
def test_autoregressive_samples_are_as_frequent_as_their_probabilities(space: gym.Space) -> None:
    distribution = made("autoregressive", space)
    inputs = torch.linspace(-1, 1, distribution.num_inputs).expand(N, -1)
    actions = drawn(distribution, inputs)
    kinds, counts = actions.unique(dim=0, return_counts=True)
    logp = distribution.logp(inputs[: len(kinds)], kinds).detach()
    assert float(logp.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    torch.testing.assert_close(logp.exp(), counts / N, atol=5e-3, rtol=0)
    along = distribution.logp_entropy(inputs, actions)[1].detach()
    assert float(along.mean()) == pytest.approx(float(-(logp.exp() * logp).sum()), abs=1e-2)
    assert len(kinds) > 4
    first = actions[:, 0] == 0
    second = [(actions[of, 1] == 0).float().mean() for of in (first, ~first)]
    assert abs(second[0] - second[1]) > 0.05  # the second component depends on the first


class Cosine(Distribution):
    """A distribution of a user's own, over a Box of one dimension."""

    num_noise = 1

    def __init__(self, space: gym.Space) -> None:
        self.num_inputs = 1

    def sample(self, inputs, noise):
        return inputs + 5.0 + noise.tanh()

    def mode(self, inputs):
        return inputs + 5.0

    def logp(self, inputs, actions):
        return -(actions - inputs - 5.0).square().sum(-1)

    def entropy(self, inputs):
        return inputs.new_ones(len(inputs))


class OwnDistribution(RLModule):
    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.distribution = Cosine(self.action_space)
        self.net = torch.nn.Linear(3, 1)

    def forward_train(self, batch):
        return {col.ACTION_DIST_INPUTS: self.net(batch[col.OBS])}


def test_a_modules_own_distribution_is_sampled_too() -> None:
    space, model = gym.spaces.Box(-1, 1, (1,)), ModelConfig(use=f"{__name__}:OwnDistribution")
    policy = build_policy(OBSERVATIONS, space, model)
    observations = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    actions, _, fetches = policy.compute_actions(observations)
    inputs = fetches[col.ACTION_DIST_INPUTS]
    assert (abs(actions - inputs - 5.0) < 1).all()
    columns = {col.ACTIONS: actions, col.ACTION_DIST_INPUTS: inputs}
    logp = policy.fragment_columns(columns)[col.ACTION_LOGP]
    np.testing.assert_allclose(logp, -((actions - inputs - 5.0) ** 2)[:, 0], rtol=1e-5)
    best, _, _ = policy.compute_actions(observations, explore=False)
    np.testing.assert_allclose(best, inputs + 5.0, rtol=1e-6)


@pytest.mark.parametrize("explore", [True, False])
def test_a_deterministic_policy_acts_as_its_network_says_and_teaches_nothing(explore: bool) -> None:
    space = gym.spaces.Box(-np.inf, np.inf, (2, 2))
    policy = build_policy(OBSERVATIONS, space, ModelConfig(distribution="deterministic"))
    observations = np.random.default_rng(0).standard_normal((4, 3), np.float32)
    actions, _, fetches = policy.compute_actions(observations, explore=explore)
    inputs = fetches[col.ACTION_DIST_INPUTS]
    assert inputs.shape == (4, 4)
    np.testing.assert_array_equal(np.reshape(actions, (4, 4)), inputs)
    distribution, rows = module_distribution(space, "deterministic"), torch.from_numpy(inputs)
    assert not distribution.logp(rows, rows).any()
    assert not distribution.entropy(rows).any()
    assert not distribution.has_kl
    assert not distribution.draw(np.random.default_rng(0), 1, 4).size  # no number is used up


class Unsampled(Cosine):
    sample, mode = Distribution.sample, Distribution.mode


class WithoutBest(Cosine):
    mode = Distribution.mode


class WithoutNoise(Cosine):
    sample = Distribution.sample


@pytest.mark.parametrize("kind", [Unsampled, WithoutBest, WithoutNoise])
def test_a_distribution_that_cannot_be_sampled_is_refused(kind: type[Distribution]) -> None:
    model = ModelConfig(distribution=f"{__name__}:{kind.__name__}")
    with pytest.raises(TypeError, match="must define sample"):
        build_policy(OBSERVATIONS, gym.spaces.Box(-1, 1, (1,)), model)


@pytest.mark.parametrize("memory", [{}, {"use_lstm": True, "lstm_cell_size": 8}])
@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("Pendulum-v1", "beta"),
        ("Pendulum-v1", "squashed_gaussian"),
        (f"{__name__}:Pairs", "autoregressive"),
    ],
)
def test_ppo_learns_from_what_was_sampled(env: str, name: str, memory: dict) -> None:
    model = {"distribution": name, "hidden": [8], **memory}
    config = PPOConfig().environment(env).model(**model).evaluation(episodes=1).debugging(seed=1)
    algorithm = config.training(train_batch_size=64, minibatch_size=64, num_epochs=1).build()
    try:
        batch = algorithm.sample()
        policy = algorithm.env_runner_group.local_env_runner.policy
        assert isinstance(policy, TorchPolicy)
        rows = algorithm.learner.load(batch, (col.ACTIONS, col.ACTION_LOGP)).columns
        inputs = torch.as_tensor(batch[col.ACTION_DIST_INPUTS])
        distribution = algorithm.learner.module.distribution
        logp = distribution.logp(inputs, rows[col.ACTIONS])
        torch.testing.assert_close(logp, torch.as_tensor(batch[col.ACTION_LOGP]), atol=1e-4, rtol=0)
        statistics = algorithm.train()["learners"]["default_policy"]["learner_stats"]
        assert abs(statistics["approx_kl"]) < 1e-5  # of the first step, nothing has changed
        assert np.isfinite(statistics["entropy"])
        algorithm.evaluate()
    finally:
        algorithm.stop()


class Pairs(gym.Env):
    """Rewards two equal actions; they may not be chosen alike without knowing each other."""

    observation_space, action_space = OBSERVATIONS, DISCRETE

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), float(action[0] == action[1]), True, False, {}


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("beta", gym.spaces.Discrete(2)),
        ("beta", gym.spaces.Box(-np.inf, np.inf, (1,))),
        ("squashed_gaussian", DISCRETE),
        ("deterministic", DISCRETE),
        ("autoregressive", gym.spaces.Discrete(4)),
        ("autoregressive", BOX),
        ("autoregressive", gym.spaces.Tuple((BOX, gym.spaces.MultiDiscrete([2, 3])))),
    ],
)
def test_spaces_that_do_not_fit_are_named(name: str, space: gym.Space) -> None:
    with pytest.raises(ConfigError, match=rf"model.distribution.*{name}: needs .*this environment"):
        module_distribution(space, name)


@pytest.mark.parametrize("name", ["math:pi", "math:sqrt", "rlrun.policies.policy:Policy"])
def test_what_is_no_distribution_is_named(name: str) -> None:
    with pytest.raises(TypeError, match=rf"model.distribution: {name} is not a subclass"):
        module_distribution(BOX, name)


CHECKS = {
    "{distribution: betta}": ("PPO", "", "did you mean beta?"),
    "{distribution: 'rlrun.policies.distributions:Bta'}": ("PPO", "", "has no 'Bta'"),
    "{distribution: 'rlrun.policies.policy:Policy'}": ("PPO", "", "not a subclass of rlrun.Distr"),
    "{distribution: deterministic}": ("A2C", "", "have no gradient, so A2C cannot learn"),
    "{distribution: autoregressive}": ("PPO", "training: {kl_coeff: 0.2}", "has no KL divergence"),
    "{distribution: beta}": ("PPO", "connectors: {normalize_actions: false}", "must be stretched"),
    "{distribution: squashed_gaussian}": ("SAC", "", "SAC has an action distribution of its own"),
}


@pytest.mark.parametrize("model", CHECKS)
def test_what_does_not_suit_the_algorithm_is_found_before_a_run(tmp_path, model: str) -> None:
    algorithm, more, message = CHECKS[model]
    path = tmp_path / "x.yaml"
    path.write_text(f"algorithm: {algorithm}\nenv: Pendulum-v1\nmodel: {model}\n{more}\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    assert message in str(caught.value)
