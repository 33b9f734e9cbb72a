"""SAC: its networks, what happens when, and what is refused."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from loss_cases import BOX, DISCRETE, OBS_SPACE

from rlrun import ConfigError, SACConfig, make_multi_agent
from rlrun.algorithms.sac import Temperature, critic_statistics, masked_target_entropy
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.nested import ACTION_MASK
from rlrun.policies.sac_policy import build_sac_policy
from rlrun.policies.soft_actor_critic import Q_VALUES, SACPolicyNetwork, TwinQNetwork

MODEL = ModelConfig(hidden=(8, 8), activation="tanh")


def make_networks(space):
    torch.manual_seed(3)
    policy = SACPolicyNetwork(OBS_SPACE, space, MODEL)
    torch.nn.init.normal_(policy.pi.last.weight)  # far from the uniform policy of the start
    critics, target = (TwinQNetwork(OBS_SPACE, space, MODEL) for _ in range(2))
    return policy, critics, target


def test_an_error_is_the_mean_of_both_critics():
    values, errors = torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([[1.0, -2.0], [3.0, 0.0]])
    statistics = critic_statistics(torch.tensor(7.0), values, errors)
    assert statistics["td_errors"].tolist() == [2.0, 1.0]
    numbers = [statistics[name].item() for name in ("critic_loss", "q_mean", "td_error_mean")]
    assert numbers == [7.0, 3.0, 1.5]


def test_the_target_entropy_follows_from_how_many_actions_each_mask_allows():
    masks = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 0], [0, 0, 0, 1]])
    expected = 0.98 * (math.log(4) + math.log(2) + math.log(1)) / 3
    assert masked_target_entropy({ACTION_MASK: masks}).item() == pytest.approx(expected)


def test_the_critics_compute_with_the_parameters_that_they_have():
    """Also after torch was asked to exchange them."""
    torch.manual_seed(0)
    critics, others = (TwinQNetwork(OBS_SPACE, BOX, MODEL) for _ in range(2))
    batch = {col.OBS: torch.randn(5, *OBS_SPACE.shape), col.ACTIONS: torch.rand(5, *BOX.shape)}
    rows = {name: column.numpy() for name, column in batch.items()}
    critics.vjp(rows)
    critics.load_state_dict(others.state_dict(), assign=True)
    expected = others.forward_train(batch)[Q_VALUES]
    torch.testing.assert_close(critics.forward_train(batch)[Q_VALUES], expected, rtol=0, atol=0)
    np.testing.assert_array_equal(critics.vjp(rows)[0], others.vjp(rows)[0])
    np.testing.assert_allclose(critics.vjp(rows)[0], expected.detach(), rtol=1e-5)


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


@pytest.mark.parametrize(("initial", "after"), [(0.5, 0.25), (0.1, 0.1)])
def test_a_new_initial_alpha_is_not_undone_by_a_checkpoint(initial, after):
    device = torch.device("cpu")
    old, new = (Temperature(start, -2.0, device) for start in (0.5, initial))
    old.step(torch.tensor(1.0), math.log(2))
    new.set_state(old.get_state())
    assert new.alpha.item() == pytest.approx(after, rel=1e-5)


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


@pytest.mark.parametrize("freq", [2, 3])
def test_the_target_may_move_every_so_many_env_steps(built, freq):
    settings = {"num_steps_sampled_before_learning_starts": 1, "train_batch_size": 1}
    algorithm = built(**settings, tau=1.0, target_network_update_freq=freq)
    updater, moved = only(algorithm), []
    for _ in range(7):
        before = updater.target.get_state()["weights"].copy()
        algorithm.train()
        moved.append(not np.array_equal(before, updater.target.get_state()["weights"]))
    assert moved == [step % freq == 0 for step in range(1, 8)]
    expected = updater.target.get_state()
    updater.target.set_state(expected)
    assert updater.target.get_state()["copied_at"] == 6


def test_standard_deviations_start_where_the_model_section_says():
    model = ModelConfig(hidden=(8,), log_std_init=-1.5)
    network = SACPolicyNetwork(OBS_SPACE, BOX, model)
    inputs = network.forward_train({col.OBS: torch.zeros(1, 3)})[col.ACTION_DIST_INPUTS][0]
    assert inputs.tolist() == [0.0] * 2 + [-1.5] * 2


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
    with pytest.raises(ConfigError, match=r"burn_in: there is no memory [\w ]+; remove this key$"):
        SACConfig().environment("Pendulum-v1").replay(burn_in=3).experiment()


@pytest.mark.parametrize("observations", [OBS_SPACE, gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)])
def test_every_acting_policy_has_its_noise_correlation(observations):
    policies = [
        build_sac_policy(observations, BOX, MODEL, noise_correlation=rho) for rho in (0.0, 0.7)
    ]
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
