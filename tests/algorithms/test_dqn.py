"""DQN: its loss against a slow transcription, and what happens when."""

import copy
import math

import numpy as np
import pytest
import torch
from loss_cases import DISCRETE, OBS_SPACE, check_gradients, replay_rows

from rlrun import ConfigError, DQNConfig, PPOConfig
from rlrun.algorithms.dqn import c51_loss, dqn_loss, project_distribution
from rlrun.algorithms.targets import rescale, unrescale
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.layers import QOptions
from rlrun.policies.q_network import ATOM_LOGITS, QNetwork


def make_networks(**options):
    torch.manual_seed(3)
    model = ModelConfig(hidden=(8, 8))
    options = QOptions(dueling=True, **options)
    return [QNetwork(OBS_SPACE, DISCRETE, model, options) for _ in range(2)]


def q_values(module, obs):
    with torch.no_grad():
        return module.forward_train({col.OBS: obs})[col.ACTION_DIST_INPUTS].numpy()


@pytest.mark.parametrize("rescaled", [True, False])
@pytest.mark.parametrize("double_q", [True, False])
def test_the_loss_is_the_papers(double_q, rescaled):
    module, target = make_networks()
    rows = replay_rows(DISCRETE)
    total, statistics = dqn_loss(
        module, rows, target=target, double_q=double_q, value_rescaling=rescaled
    )
    scale, unscale = (rescale, unrescale) if rescaled else (torch.clone, torch.clone)
    now = q_values(module, rows[col.OBS])
    after, after_target = (q_values(m, rows[col.NEXT_OBS]) for m in (module, target))
    expected = 0.0
    n = len(now)
    for i in range(n):
        best = np.argmax(after[i] if double_q else after_target[i])
        goal = rows[col.REWARDS][i].item()
        if not rows[col.TERMINATEDS][i]:
            following = unscale(torch.tensor(after_target[i, best])).item()
            goal += rows[col.DISCOUNTS][i].item() * following
        error = now[i, rows[col.ACTIONS][i]] - scale(torch.tensor(goal)).item()
        huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
        expected += rows[col.WEIGHTS][i].item() * huber / n
        # Priorities use the error without its weight.
        assert statistics["td_errors"][i].item() == pytest.approx(error, rel=1e-4)
    assert total.item() == pytest.approx(expected, rel=1e-5)
    assert (after.argmax(1) != after_target.argmax(1)).any(), "the example tells nothing apart"


def test_distributions_of_values_are_not_rescaled():
    config = DQNConfig().environment("CartPole-v1").training(num_atoms=51, value_rescaling=True)
    with pytest.raises(ConfigError, match=r"training\.value_rescaling.*leave it out"):
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


def test_the_target_network_is_a_copy_that_is_renewed_every_so_many_env_steps(built):
    settings = {"num_steps_sampled_before_learning_starts": 1, "lr": 1e-2}
    algorithm = built(build(**settings, target_network_update_freq=128))
    initial = copy.deepcopy(algorithm.replay.updaters["default_policy"].target.module.state_dict())
    algorithm.train()
    changed = algorithm.learner.module.state_dict()
    assert any(not torch.equal(changed[name], value) for name, value in initial.items())
    for name, value in (
        algorithm.replay.updaters["default_policy"].target.module.state_dict().items()
    ):
        assert torch.equal(value, initial[name])
    algorithm.train()
    for name, value in (
        algorithm.replay.updaters["default_policy"].target.module.state_dict().items()
    ):
        assert torch.equal(value, algorithm.learner.module.state_dict()[name])


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


def slow_projection(probabilities, reward, discount, support):
    """Bellemare et al. 2017, algorithm 1, for one row."""
    v_min, v_max = support[0], support[-1]
    delta = support[1] - support[0]
    m = [0.0] * len(support)
    for p, z in zip(probabilities, support, strict=True):
        point = min(max(reward + discount * z, v_min), v_max)
        b = (point - v_min) / delta
        lower, upper = math.floor(b), math.ceil(b)
        if lower == upper:
            m[lower] += p
        else:
            m[lower] += p * (upper - b)
            m[upper] += p * (b - lower)
    return m


def test_the_projection_is_algorithm_1():
    rng = np.random.default_rng(5)
    support = np.linspace(-2.0, 3.0, 11)
    probabilities = rng.dirichlet(np.ones(11), size=40)
    rewards = np.concatenate([rng.normal(size=36) * 3, [0.0, 0.5, 99.0, -99.0]])
    discounts = np.concatenate([rng.choice([0.0, 0.9, 0.99], size=36), [1.0, 1.0, 0.9, 0.9]])
    found = project_distribution(
        *(torch.tensor(x) for x in (probabilities, rewards, discounts, support))
    ).numpy()
    for i in range(40):
        expected = slow_projection(probabilities[i], rewards[i], discounts[i], support)
        np.testing.assert_allclose(found[i], expected, atol=1e-9)
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-9)
    np.testing.assert_allclose(found[36], probabilities[36], atol=1e-9)
    assert found[38, 10] == pytest.approx(1.0)
    ended = project_distribution(*map(torch.tensor, (probabilities[:1], [0.25], [0.0], support)))
    assert ended[0].tolist() == pytest.approx([0.0] * 4 + [0.5, 0.5] + [0.0] * 5)


@pytest.mark.parametrize("double_q", [True, False])
def test_the_c51_loss_is_the_cross_entropy_to_the_projected_target(double_q):
    module, target = make_networks(num_atoms=7, v_min=-3.0, v_max=3.0)
    rows = replay_rows(DISCRETE)
    total, statistics = c51_loss(module, rows, target=target, double_q=double_q)
    support = np.linspace(-3.0, 3.0, 7)

    def distributions(network, obs):
        with torch.no_grad():
            logits = network.forward_train({col.OBS: obs})[ATOM_LOGITS].double().numpy()
        e = np.exp(logits)
        return e / e.sum(-1, keepdims=True)

    now = distributions(module, rows[col.OBS])
    after, after_target = (distributions(m, rows[col.NEXT_OBS]) for m in (module, target))
    expected, n = 0.0, len(now)
    for i in range(n):
        best = ((after if double_q else after_target)[i] @ support).argmax()
        discount = 0.0 if rows[col.TERMINATEDS][i] else rows[col.DISCOUNTS][i].item()
        m = slow_projection(after_target[i, best], rows[col.REWARDS][i].item(), discount, support)
        p = now[i, rows[col.ACTIONS][i]]
        cross_entropy = -sum(a * math.log(b) for a, b in zip(m, p, strict=True))
        divergence = sum(a * math.log(a / b) for a, b in zip(m, p, strict=True) if a > 0)
        expected += rows[col.WEIGHTS][i].item() * cross_entropy / n
        assert statistics["td_errors"][i].item() == pytest.approx(divergence, rel=1e-3, abs=1e-5)
    assert total.item() == pytest.approx(expected, rel=1e-5)
    total.backward()
    assert all(p.grad is None for p in target.parameters())


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


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize(
    ("loss", "options"),
    [(dqn_loss, {}), (c51_loss, {"num_atoms": 7, "v_min": -3.0, "v_max": 3.0})],
)
def test_the_gradient_agrees_with_finite_differences(loss, options, double_q, float64):
    """Of the loss as a whole: its targets do not move with the network."""
    module, target = map(float64, make_networks(**options))
    rows = float64(replay_rows(DISCRETE))
    check_gradients(module, lambda: loss(module, rows, target=target, double_q=double_q)[0])
    assert all(parameter.grad is None for parameter in target.parameters())


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


def test_the_ends_of_the_distribution_must_be_in_order():
    with pytest.raises(ConfigError, match=r"v_min.*must be below v_max"):
        build(num_atoms=51, v_min=5.0, v_max=5.0).experiment()


def test_each_runner_has_its_own_epsilon_and_evaluation_the_least(built):
    algorithm = built(
        build()
        .env_runners(num_env_runners=3, num_envs_per_env_runner=1, num_cpus_per_env_runner=0.1)
        .exploration(epsilon=0.4, runner_exponent=7.0)
    )
    expected = [0.4 ** (1 + 7 * i / 2) for i in range(3)]
    told = algorithm.exploration("default_policy")
    assert [each["epsilon"] for each in told] == pytest.approx(expected)
    group = algorithm.env_runner_group
    algorithm.train()
    acting = group.foreach_env_runner(lambda runner: runner.policy.sampler.epsilon)
    assert acting == pytest.approx(expected)
    assert algorithm.evaluator.runner().policy.sampler.epsilon == pytest.approx(expected[-1])
    alone = built(build().exploration(epsilon=0.4, runner_exponent=7.0))
    assert alone.exploration("default_policy") == {"epsilon": 0.4}
