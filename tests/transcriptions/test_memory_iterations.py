"""LSTM, GRU and GTrXL: whole iterations equal those of networks that are written out."""

import pytest
from comparison import compare
from plain_learners import a2c, appo, impala, pg, ppo
from plain_networks import GRU, LSTM, GTrXL

from rlrun import A2CConfig, APPOConfig, IMPALAConfig, PGConfig, PPOConfig

RECURRENT = {"hidden": [5], "lstm_cell_size": 4, "max_seq_len": 4}
SEEN = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
ATTENTION = {
    **{"hidden": [5], "max_seq_len": 4, "use_attention": True, "attention_memory": 3},
    **{"attention_num_transformer_units": 2, "attention_dim": 6, "attention_num_heads": 2},
    **{"attention_head_dim": 3, "attention_position_wise_mlp_dim": 5},
    **{"attention_use_n_prev_actions": 2, "attention_use_n_prev_rewards": 2},
}
NETWORKS = {
    "LSTM": ({**RECURRENT, **SEEN, "use_lstm": True}, LSTM(previous=1)),
    "GRU": ({**RECURRENT, "use_gru": True}, GRU()),
    "LSTM before hidden layers": (
        {**RECURRENT, "use_lstm": True, "head_hidden": [4], "value_hidden": [3, 3]},
        LSTM(),
    ),
    "GTrXL": (ATTENTION, GTrXL(units=2, steps=3, heads=2, previous=2)),
}
ALGORITHMS = {
    "PG": (PGConfig, pg, {"adam_epsilon": 1e-5}),
    "A2C": (A2CConfig, a2c, {"microbatch_size": 10}),
    "PPO": (PPOConfig, ppo, {"minibatch_size": 14, "num_epochs": 2}),
    "IMPALA": (IMPALAConfig, impala, {"minibatch_size": 14, "broadcast_interval": 2}),
    "APPO": (APPOConfig, appo, {"minibatch_size": 14, "broadcast_interval": 2}),
}
CASES = [(name, "PPO") for name in NETWORKS] + [
    ("LSTM", name) for name in ALGORITHMS if name != "PPO"
]


def small(config, model, **training):
    config = config.training(**{"train_batch_size": 36, "lr": 0.01, "gamma": 0.9, **training})
    return config.model(**model).env_runners(num_envs_per_env_runner=2)


@pytest.mark.parametrize(("network", "name"), CASES)
def test_iterations_equal_the_transcription(network, name, tmp_path):
    model, net = NETWORKS[network]
    config, transcription, training = ALGORITHMS[name]
    if network == "GTrXL":  # its transcription takes seconds
        training = {**training, "train_batch_size": 24}
    compare(small(config(), model, **training), transcription, net, tmp_path)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_autoreset_modes(mode, tmp_path):
    model, net = NETWORKS["LSTM"]
    vector = {"use": "logged_envs:logged_vector", "mode": mode}
    compare(
        small(PPOConfig(), model, minibatch_size=14, num_epochs=2), ppo, net, tmp_path, **vector
    )


@pytest.mark.parametrize(
    "network", ["LSTM", "GRU", pytest.param("GTrXL", marks=pytest.mark.learning)]
)
def test_two_policies(network, tmp_path):
    model, net = NETWORKS[network]
    policies = {"a": {}, "b": {"training": {"lr": 0.002, "gamma": 0.8}}}
    config = small(PPOConfig(), model, minibatch_size=14, num_epochs=1)
    config = config.multi_agent(policies=policies, agents={"a": "a", "b": "b"})
    compare(config, ppo, net, tmp_path, use="logged_envs:LoggedAgents")
