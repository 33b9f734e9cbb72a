"""SAC: its losses against slow transcriptions, its networks, and what happens when."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from loss_cases import BOX, DISCRETE, OBS_SPACE, check_gradients, replay_rows

from rlrun import ConfigError, SACConfig, make_multi_agent
from rlrun.algorithms import sac
from rlrun.algorithms.sac import Temperature, critic_loss, policy_loss
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.sac_policy import build_sac_policy
from rlrun.policies.soft_actor_critic import Q_VALUES, SACPolicyNetwork, TwinQNetwork

ALPHA = torch.tensor([0.3])
MODEL = ModelConfig(hidden=(8, 8), activation="tanh")


def make_networks(space):
    torch.manual_seed(3)
    policy = SACPolicyNetwork(OBS_SPACE, space, MODEL)
    torch.nn.init.normal_(policy.pi.last.weight)  # far from the uniform policy of the start
    critics, target = (TwinQNetwork(OBS_SPACE, space, MODEL) for _ in range(2))
    return policy, critics, target


def gaussian(inputs, noise):
    """Action and log-probability of one row, from the definition."""
    mean, log_std = np.split(inputs.astype(np.float64), 2)
    std = np.exp(np.clip(log_std, -20, 2))
    u = mean + std * noise
    logp = -0.5 * ((u - mean) / std) ** 2 - np.log(std) - 0.5 * math.log(2 * math.pi)
    return np.tanh(u), (logp + 2 * np.log(np.cosh(u))).sum()  # 1 - tanh^2 is 1 / cosh^2


def q_of(critics, obs, action=None):
    """Both critics' values of one row: [2], or [2, n] for discrete actions."""
    rows = {col.OBS: obs[None]}
    if action is not None:
        rows[col.ACTIONS] = torch.tensor(action[None], dtype=obs.dtype)
    with torch.no_grad():
        return critics.forward_train(rows)[Q_VALUES][:, 0].numpy()


def soft_value(policy, critics, obs, noise):
    """min Q - alpha log pi: of the sampled action, or the mean over all discrete ones."""
    with torch.no_grad():
        inputs = policy.forward_train({col.OBS: obs[None]})[col.ACTION_DIST_INPUTS][0].numpy()
    if noise is not None:
        action, logp = gaussian(inputs, noise)
        return q_of(critics, obs, action).min() - ALPHA.item() * logp
    p = np.exp(inputs - inputs.max())
    p /= p.sum()
    q = q_of(critics, obs)
    return sum(
        p[a] * (min(q[0, a], q[1, a]) - ALPHA.item() * math.log(p[a])) for a in range(len(p))
    )


def noise_of(rows, name, i):
    return rows[name][i].numpy() if name in rows else None


def test_the_critics_compute_with_the_parameters_that_they_have():
    """Also after these were exchanged, not overwritten."""
    torch.manual_seed(0)
    critics, others = (TwinQNetwork(OBS_SPACE, BOX, MODEL) for _ in range(2))
    batch = {col.OBS: torch.randn(5, *OBS_SPACE.shape), col.ACTIONS: torch.rand(5, *BOX.shape)}
    critics.load_state_dict(others.state_dict(), assign=True)
    expected = others.forward_train(batch)[Q_VALUES]
    torch.testing.assert_close(critics.forward_train(batch)[Q_VALUES], expected, rtol=0, atol=0)
    torch.testing.assert_close(critics.vjp(batch)[0], others.vjp(batch)[0], rtol=0, atol=0)


@pytest.mark.parametrize("space", [BOX, DISCRETE], ids=["box", "discrete"])
def test_the_critics_learn_the_soft_bellman_target(space):
    policy, critics, target = make_networks(space)
    rows = replay_rows(space)
    total, statistics = critic_loss(critics, rows, policy=policy, target=target, alpha=ALPHA)
    expected = 0.0
    n = len(rows[col.OBS])
    for i in range(n):
        goal = rows[col.REWARDS][i].item()
        if not rows[col.TERMINATEDS][i]:
            following = soft_value(
                policy, target, rows[col.NEXT_OBS][i], noise_of(rows, "new_noise", i)
            )
            goal += rows[col.DISCOUNTS][i].item() * following
        action = rows[col.ACTIONS][i]
        if space is BOX:
            values = q_of(critics, rows[col.OBS][i], action.numpy())
        else:
            values = q_of(critics, rows[col.OBS][i])[:, action]
        errors = values - goal
        expected += rows[col.WEIGHTS][i].item() * 0.5 * (errors**2).sum() / n
        found = statistics["td_errors"][i].item()
        assert found == pytest.approx(np.abs(errors).mean(), rel=1e-4)
    assert total.item() == pytest.approx(expected, rel=1e-5)
    total.backward()
    assert all(p.grad is None for p in [*policy.parameters(), *target.parameters()])
    # The smaller one is believed, whichever it is.
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.copy_(parameter.flip(0))
    swapped, _ = critic_loss(critics, rows, policy=policy, target=target, alpha=ALPHA)
    assert swapped.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("space", [BOX, DISCRETE], ids=["box", "discrete"])
def test_the_critics_gradient_agrees_with_finite_differences(space, float64):
    """Of the loss as a whole: what it is drawn to does not move with the critics."""
    policy, critics, target = map(float64, make_networks(space))
    arguments = {"policy": policy, "target": target, "alpha": ALPHA.double()}
    rows = float64(replay_rows(space))
    check_gradients(critics, lambda: critic_loss(critics, rows, **arguments)[0], of_each=4)


@pytest.mark.parametrize("space", [BOX, DISCRETE], ids=["box", "discrete"])
def test_the_policy_learns_the_soft_value_with_the_gradient_of_finite_differences(space, float64):
    policy, critics, _ = map(float64, make_networks(space))
    rows = float64(replay_rows(space))
    arguments = {"critics": critics, "alpha": ALPHA.double()}
    total, statistics = policy_loss(policy, rows, **arguments)
    values = [
        soft_value(policy, critics, rows[col.OBS][i], noise_of(rows, "noise", i))
        for i in range(len(rows[col.OBS]))
    ]
    assert total.item() == pytest.approx(-np.mean(values), rel=1e-5)
    assert statistics["policy_loss"].item() == total.item()
    check_gradients(policy, lambda: policy_loss(policy, rows, **arguments)[0], of_each=4)


def test_the_twin_is_two_networks():
    _, critics, _ = make_networks(BOX)
    q = critics.q
    x = torch.randn(7, 5)
    both = q(x)
    assert not torch.allclose(both[0], both[1])
    for k in range(2):
        y = x
        for i, (weight, bias) in enumerate(zip(q.weights, q.biases, strict=True)):
            y = y @ weight[k] + bias[k]
            y = torch.tanh(y) if i < 2 else y
        torch.testing.assert_close(both[k], y)


@pytest.mark.parametrize("space", [BOX, DISCRETE], ids=["box", "discrete"])
def test_the_numpy_policy_acts_as_the_network_and_evaluates_by_its_mode(space):
    policy, _, _ = make_networks(space)
    acting = build_sac_policy(OBS_SPACE, space, MODEL)
    vector = torch.nn.utils.parameters_to_vector(policy.parameters()).detach().numpy()
    acting.set_weights(vector)
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    with torch.no_grad():
        inputs = policy.forward_train({col.OBS: torch.from_numpy(obs)})[col.ACTION_DIST_INPUTS]
    actions, _, extras = acting.compute_actions(obs, explore=False)
    np.testing.assert_allclose(extras[col.ACTION_DIST_INPUTS], inputs, rtol=1e-5, atol=1e-6)
    mode = inputs[:, :2].tanh() if space is BOX else inputs.argmax(1)
    np.testing.assert_allclose(actions, mode, rtol=1e-5, atol=1e-6)


def test_alpha_moves_against_the_entropy_and_stays_positive():
    temperature = Temperature(0.5, target_entropy=-2.0, device=torch.device("cpu"))
    temperature.step(torch.tensor(1.0), 0.1)
    assert 0.0 < temperature.alpha.item() < 0.5
    for _ in range(200):
        temperature.step(torch.tensor(-5.0), 0.1)
    assert temperature.alpha.item() > 0.5
    before = temperature.alpha.item()
    temperature.step(torch.tensor(1.0), 0.0)
    assert temperature.alpha.item() == before


@pytest.fixture
def updates(monkeypatch):
    """What each update gives its critics, and the entropy that it finds."""
    seen, of_critic, of_policy = [], sac.critic_gradient, sac.policy_gradient

    def critic_spy(module, rows, **arguments):
        noise = rows["noise"].clone(), rows["new_noise"].clone()
        seen.append({**arguments, "alpha": arguments["alpha"].item(), "noise": noise})
        return of_critic(module, rows, **arguments)

    def policy_spy(module, rows, **arguments):
        statistics = of_policy(module, rows, **arguments)
        seen[-1] |= {"entropy": statistics["entropy"].clone(), "critics": arguments["critics"]}
        return statistics

    monkeypatch.setattr(sac, "critic_gradient", critic_spy)
    monkeypatch.setattr(sac, "policy_gradient", policy_spy)
    return seen


@pytest.fixture
def built(built):
    def build(env="Pendulum-v1", connectors=None, multi_agent=None, **training):
        settings = {
            "train_batch_size": 40,
            "minibatch_size": 16,
            "training_intensity": 16,
            "num_steps_sampled_before_learning_starts": 60,
        }
        config = SACConfig().environment(env).training(**{**settings, **training})
        config = config.model(hidden=[8]).debugging(seed=3).connectors(**(connectors or {}))
        return built(config if multi_agent is None else config.multi_agent(**multi_agent))

    return build


def statistics_of(algorithm):
    return algorithm.train()["learners"]["default_policy"]["learner_stats"]


def test_an_update_a_step_once_the_buffer_holds_enough(built):
    algorithm = built()
    before = algorithm.get_weights()
    first = statistics_of(algorithm)
    assert (first["num_updates"], first["critic_loss"], first["replay_size"]) == (0, None, 40)
    for name, value in algorithm.get_weights().items():
        np.testing.assert_array_equal(value, before[name])
    assert statistics_of(algorithm)["num_updates"] == 21  # after steps 60, 61, ..., 80
    assert statistics_of(algorithm)["num_updates"] == 40
    assert any(name.startswith("default_policy/critics.q") for name in before)
    for name, value in algorithm.get_weights().items():
        assert not np.array_equal(value, before[name]), name


def only(algorithm):
    """What the one policy has beside its learner."""
    return algorithm.replay.updaters["default_policy"]


def test_the_target_follows_by_tau(built):
    algorithm = built(num_steps_sampled_before_learning_starts=1, train_batch_size=1, tau=0.25)
    updater = only(algorithm)
    start = updater.target.get_state()["weights"]
    algorithm.train()
    expected = start + 0.25 * (updater.critic.parameters.to_numpy() - start)
    np.testing.assert_allclose(updater.target.get_state()["weights"], expected, rtol=1e-6)


def test_targets_come_from_the_target_network_and_actions_from_fresh_noise(built, updates):
    algorithm = built(num_steps_sampled_before_learning_starts=1)
    algorithm.train()
    assert len(updates) == 40
    networks = only(algorithm)
    for each in updates:
        assert each["target"] is networks.target.module
        assert each["policy"] is algorithm.learner.module
        assert each["critics"] is networks.critic.module
    noises = {tuple(noise.flatten().tolist()) for each in updates for noise in each["noise"]}
    assert len(noises) == 2 * len(updates)


def test_each_update_moves_alpha_by_the_entropy_it_finds(built, updates):
    algorithm = built(num_steps_sampled_before_learning_starts=1, alpha_lr=0.01)
    updates.clear()
    algorithm.train()
    temperature = Temperature(1.0, -1.0, torch.device("cpu"))
    for each in updates:
        assert each["alpha"] == pytest.approx(temperature.alpha.item(), rel=1e-6)
        temperature.step(each["entropy"], 0.01)
    assert updates[-1]["alpha"] < 0.8


@pytest.mark.parametrize(("name", "moves"), [("lr", 0), ("critic_lr", 1), ("alpha_lr", 2)])
def test_each_part_has_its_learning_rate(built, name, moves):
    rates = {"lr": 0.0, "critic_lr": 0.0, "alpha_lr": 0.0, name: 0.01}
    algorithm = built(num_steps_sampled_before_learning_starts=1, **rates)
    updater = only(algorithm)

    def parts():
        critics = updater.critic.parameters.to_numpy()
        return algorithm.learner.get_weights(), critics, updater.temperature.alpha.numpy().copy()

    before = parts()
    algorithm.train()
    changed = [not np.array_equal(*pair) for pair in zip(before, parts(), strict=True)]
    assert changed == [part == moves for part in range(3)]


def test_standard_deviations_start_where_the_model_section_says():
    model = ModelConfig(hidden=(8,), log_std_init=-1.5)
    network = SACPolicyNetwork(OBS_SPACE, BOX, model)
    inputs = network.forward_train({col.OBS: torch.zeros(1, 3)})[col.ACTION_DIST_INPUTS][0]
    assert inputs.tolist() == [0.0] * 2 + [-1.5] * 2


def test_a_policy_step_leaves_no_gradient_in_the_critics(built):
    algorithm = built(num_steps_sampled_before_learning_starts=1)
    critic = only(algorithm).critic
    rows = {**replay_rows(BOX), col.OBS: torch.randn(9, 3)}
    rows["noise"] = rows["noise"][:, :1]
    critic.parameters.zero_grad()
    arguments = {"critics": critic.module, "alpha": ALPHA}
    algorithm.learner.step(rows, policy_loss, arguments, lr=1e-3)
    assert not critic.parameters.grads.any()


def test_the_target_entropy_is_minus_the_dimensions_or_nearly_uniform(built):
    def target_entropy(*args, **kwargs):
        return only(built(*args, **kwargs)).temperature.target_entropy

    assert target_entropy() == -1.0
    assert target_entropy("CartPole-v1") == pytest.approx(0.98 * math.log(2))
    assert target_entropy(target_entropy=-0.5) == -0.5


def test_actions_are_stored_squashed_and_reach_the_env_stretched(built):
    algorithm = built()
    batch = algorithm.sample()
    actions = batch[col.ACTIONS]
    assert actions.shape == (40, 1)
    assert np.abs(actions).max() <= 1.0
    assert np.abs(actions).std() > 0.1
    # What Pendulum pays tells which torque it was given.
    cosine, sine, velocity = batch[col.OBS].T
    cost = np.arctan2(sine, cosine) ** 2 + 0.1 * velocity**2 + 0.001 * (2 * actions[:, 0]) ** 2
    np.testing.assert_allclose(batch[col.REWARDS], -cost, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_squashed_is_refused(built):
    with pytest.raises(ConfigError, match="normalize_actions"):
        built(connectors={"normalize_actions": False})
    with pytest.raises(ConfigError, match="bounded Box"):
        build_sac_policy(OBS_SPACE, gym.spaces.Box(-np.inf, np.inf, (1,)), MODEL)
    with pytest.raises(ConfigError, match="SAC replays single transitions"):
        SACConfig().environment("Pendulum-v1").model(use_lstm=True).experiment()


@pytest.mark.parametrize("observations", [OBS_SPACE, gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)])
def test_every_acting_policy_has_its_noise_correlation(observations):
    policies = [build_sac_policy(observations, BOX, MODEL, rho) for rho in (0.0, 0.7)]
    assert [policy.noise_correlation for policy in policies] == [0.0, 0.7]


TwoPendulums = make_multi_agent("Pendulum-v1")


def test_each_policys_noise_lasts_as_its_settings_say(built):
    one = built(noise_correlation=0.7).env_runner_group.local_env_runner
    assert one.policy.noise_correlation == 0.7
    policies = {"lasting": {"training": {"noise_correlation": 0.5}}, "independent": {}}
    agents = {"agent_0": "lasting", "agent_1": "independent"}
    env = f"{__name__}:TwoPendulums"
    several = built(env, multi_agent={"policies": policies, "agents": agents})
    found = several.env_runner_group.local_env_runner.policies
    assert {name: policy.noise_correlation for name, policy in found.items()} == {
        "lasting": 0.5,
        "independent": 0.0,
    }


def test_discrete_actions_have_no_noise_that_lasts(built):
    with pytest.raises(ConfigError, match=r"training.noise_correlation: .* has Discrete\(2\)"):
        built("CartPole-v1", noise_correlation=0.5)
    with pytest.raises(ConfigError, match="noise_correlation"):
        SACConfig().environment("Pendulum-v1").training(noise_correlation=1.0).experiment()
