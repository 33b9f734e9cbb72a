"""DQN, Rainbow, R2D2, Ape-X and SAC: whole iterations equal those in plain torch."""

import pytest
from comparison import compare
from plain_networks import GRU, LSTM
from plain_replay import QNetwork, dqn, r2d2, sac

from rlrun import DQNConfig, SACConfig

COMMON = {
    "train_batch_size": 24,
    "minibatch_size": 16,
    "num_steps_sampled_before_learning_starts": 16,
    "lr": [[0, 0.005], [20, 0.01], [40, 0.003]],
    "gamma": 0.9,
    "adam_epsilon": 1e-5,
    "training_intensity": 6,
}
OFF = {"double_q": False, "dueling": False, "target_network_update_freq": 12}
PRIORITIES = {"prioritized": True, "alpha": 0.7, "beta": [[0, 0.4], [48, 1.0]], "epsilon": 0.01}
C51 = {"num_atoms": 5, "v_min": -4.0, "v_max": 3.0}
NOISY = {"noisy": True, "sigma0": 0.5}
SWITCHES = {
    "plain": {},
    "double": {"double_q": True},
    "dueling": {"dueling": True},
    "n-step": {"n_step": 3},
    "rescaled": {"value_rescaling": True},
    "a slow target": {"tau": 0.3},
    "distributional": C51,
    "noisy": NOISY,
    "Rainbow": {"double_q": True, "dueling": True, "n_step": 3, **C51, **NOISY},
}
EPSILONS = {"epsilon": 0.5}
LSTM_SEEN = {"use_lstm": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}


def replaying(config, replay, *, length=2, **training):
    config = config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=length)
    config = config.training(**{**COMMON, **training}).model(hidden=[6, 5])
    return config.replay(capacity=100, **replay)


def q_learning(replay=None, **training):
    config = replaying(DQNConfig(), replay or {}, **{**OFF, **training})
    return config.exploration(epsilon=0 if training.get("noisy") else 0.5)


def q_network(**training):
    return QNetwork(atoms=training.get("num_atoms", 1))


@pytest.mark.parametrize("priorities", [{}, PRIORITIES], ids=["uniform", "by priority"])
@pytest.mark.parametrize("name", SWITCHES)
def test_dqn(name, priorities, tmp_path):
    switch = SWITCHES[name]
    compare(q_learning(priorities, **switch), dqn, q_network(**switch), tmp_path)


@pytest.mark.parametrize("name", ["plain", "Rainbow"])
def test_images(name, tmp_path):
    # With a smaller epsilon Adam makes much of the rounding of small gradients.
    switch = {**SWITCHES[name], "adam_epsilon": 1e-3}
    config = q_learning(PRIORITIES, **switch).model(conv=[[4, 3, 1], [3, 2, 1]], conv_head=5)
    compare(config, dqn, q_network(**switch), tmp_path, image=True)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_autoreset_modes(mode, tmp_path):
    vector = {"use": "logged_envs:logged_vector", "mode": mode}
    compare(q_learning(n_step=3), dqn, QNetwork(), tmp_path, **vector)


def test_a_buffer_that_forgets(tmp_path):
    config = q_learning(PRIORITIES, n_step=3).replay(capacity=30)
    compare(config, dqn, QNetwork(), tmp_path)


@pytest.mark.parametrize("memory", ["LSTM", "GRU"])
@pytest.mark.parametrize("dueling", [True, False])
def test_r2d2(memory, dueling, tmp_path):
    switches = {"double_q": dueling, "dueling": dueling, "n_step": 2, "value_rescaling": dueling}
    config = q_learning(PRIORITIES if dueling else {}, length=4, **switches)
    used, net = (LSTM_SEEN, LSTM(previous=1)) if memory == "LSTM" else ({"use_gru": True}, GRU())
    compare(remembering(config, **used), r2d2, net, tmp_path)


def remembering(config, **used):
    return config.model(hidden=[5], lstm_cell_size=4, max_seq_len=3, **used).replay(burn_in=2)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("actions", ["discrete", "bounded"])
def test_sac(actions, activation, tmp_path):
    rates = {"critic_lr": [[0, 0.01], [40, 0.002]], "alpha_lr": 0.02, "tau": 0.1, "n_step": 2}
    config = replaying(SACConfig(), PRIORITIES, **rates, initial_alpha=0.5, grad_clip=2.0)
    image, convolutions = activation == "relu", {"conv": [[3, 3, 1]], "conv_head": 5}
    config = config.model(activation=activation, **(convolutions if image else {}))
    compare(config, sac, activation, tmp_path, actions=actions, image=image)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_sac_with_state_dependent_noise(activation, tmp_path):
    config = replaying(SACConfig(), {}, initial_alpha=0.5)
    config = config.model(activation=activation, use_sde=True, log_std_init=-1)
    compare(config, sac, activation, tmp_path, actions="bounded")


@pytest.mark.parametrize("name", ["DQN", pytest.param("R2D2", marks=pytest.mark.learning), "SAC"])
def test_two_policies(name, tmp_path):
    policies = {"a": {}, "b": {"training": {"lr": 0.002, "gamma": 0.8, "n_step": 2}}}
    make, *transcription = {
        "DQN": (lambda: q_learning(PRIORITIES, dueling=True), dqn, QNetwork()),
        "R2D2": (
            lambda: remembering(q_learning(PRIORITIES, length=4), **LSTM_SEEN),
            r2d2,
            LSTM(previous=1),
        ),
        "SAC": (lambda: replaying(SACConfig(), PRIORITIES), sac, "tanh"),
    }[name]
    config = make().multi_agent(policies=policies, agents={"a": "a", "b": "b"})
    compare(config, *transcription, tmp_path, use="logged_envs:LoggedAgents")


@pytest.mark.learning
@pytest.mark.parametrize("policies", [{}, {"a": {}, "b": {"training": {"gamma": 0.8}}}], ids=len)
def test_apex(local_ray, policies, tmp_path):
    config = q_learning(PRIORITIES, dueling=True, double_q=True, n_step=3, length=6)
    config = config.env_runners(num_env_runners=2, num_cpus_per_env_runner=0.1)
    config, agents = config.exploration(runner_exponent=7), {}
    if policies:
        config = config.multi_agent(policies=policies, agents={"a": "a", "b": "b"})
        agents = {"use": "logged_envs:LoggedAgents"}
    compare(config, dqn, QNetwork(), tmp_path, **agents)
