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


@pytest.mark.parametrize(("network", "name"), CASES)
def test_iterations_equal_the_transcription(network, name, tmp_path):
    model, net = NETWORKS[network]
    config, transcription, training = ALGORITHMS[name]
    config = config().training(train_batch_size=36, lr=0.01, gamma=0.9, **training).model(**model)
    compare(config.env_runners(num_envs_per_env_runner=2), transcription, net, tmp_path)
