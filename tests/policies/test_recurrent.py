"""Recurrent modules: step by step and over padded sequences they compute the same."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.action_sampling import action_layout
from rlrun.policies.catalog import build_module
from rlrun.policies.recurrent import (
    one_hot_actions,
    one_hot_width,
    pad_sequences,
    step_mask,
    unpad_sequences,
)
from rlrun.policies.torch_policy import TorchPolicy

VECTOR = gym.spaces.Box(-1, 1, (3,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (12, 12, 1), np.uint8)
SPACES = {
    "discrete": gym.spaces.Discrete(3, start=5),
    "box": gym.spaces.Box(-1, 1, (2,), np.float32),
    "tuple": gym.spaces.Tuple((gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,), np.float32))),
}
MEMORIES = {
    "lstm": {"use_lstm": True},
    "gru": {"use_gru": True},
    "lstm, previous step": {
        "use_lstm": True,
        "lstm_use_prev_action": True,
        "lstm_use_prev_reward": True,
    },
}


def make(memory, observations=VECTOR, actions="discrete", **more):
    torch.manual_seed(0)
    model = ModelConfig(hidden=(8,), lstm_cell_size=6, max_seq_len=4, **MEMORIES[memory], **more)
    return build_module(observations, SPACES[actions], model)


def random_batch(module, seq_lens, rng, observations=VECTOR):
    """Rows of sequences one after the other, each from a state of its own."""
    rows = int(sum(seq_lens))
    if observations is VECTOR:
        obs = torch.from_numpy(rng.normal(size=(rows, 3)).astype(np.float32))
    else:
        obs = torch.from_numpy(rng.integers(0, 255, (rows, 12, 12, 1), dtype=np.uint8))
    batch = {col.OBS: obs, col.SEQ_LENS: torch.tensor(seq_lens)}
    if col.PREV_ACTIONS in module.view_requirements:
        batch[col.PREV_ACTIONS] = torch.from_numpy(rng.integers(0, 3, rows))
        batch[col.PREV_REWARDS] = torch.from_numpy(rng.normal(size=rows).astype(np.float32))
    for k, state in enumerate(module.initial_state()):
        values = rng.normal(size=(len(seq_lens), *state.shape)).astype(np.float32)
        batch[f"state_in_{k}"] = torch.from_numpy(np.tanh(values))
    return batch


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_padding_goes_back_and_forth(seq_lens):
    steps = torch.arange(sum(seq_lens) * 2.0).view(-1, 2)
    mask = step_mask(torch.tensor(seq_lens))
    padded = pad_sequences(steps, mask, -1.0)
    assert padded.shape == (len(seq_lens), max(seq_lens), 2)
    begin = 0
    for sequence, length in zip(padded, seq_lens, strict=True):
        assert sequence[:length].tolist() == steps[begin : begin + length].tolist()
        assert (sequence[length:] == -1).all(), "padding stands to the right"
        begin += length
    assert unpad_sequences(padded, mask).tolist() == steps.tolist()


@pytest.mark.parametrize("actions", sorted(SPACES))
def test_previous_actions_are_one_hot(actions):
    layout = action_layout(SPACES[actions])
    rows = {
        "discrete": (torch.tensor([2, 0]), [[0, 0, 1], [1, 0, 0]]),
        "box": (torch.tensor([[0.5, -1.0]]), [[0.5, -1.0]]),
        "tuple": (torch.tensor([[1.0, 0.25, 2.0]]), [[0, 1, 0.25, 2.0]]),
    }
    given_actions, expected = rows[actions]
    encoded = one_hot_actions(given_actions, layout)
    assert encoded.tolist() == expected
    assert encoded.shape[1] == one_hot_width(layout)


def test_the_previous_step_is_a_view_and_is_used():
    module = make("lstm, previous step")
    views = module.view_requirements
    assert (views["prev_actions"].data_col, views["prev_actions"].shift) == ("actions", -1)
    assert (views["prev_rewards"].data_col, views["prev_rewards"].shift) == ("rewards", -1)
    assert views["state_in_1"].batch_repeat_value == 4
    batch = random_batch(module, [2], np.random.default_rng(0))
    before = module.compute_values(batch)
    for name in ("prev_actions", "prev_rewards"):
        changed = {**batch, name: batch[name] + 1}
        assert not torch.equal(module.compute_values(changed), before), name
    assert list(make("gru").view_requirements) == ["state_in_0", "obs"]


def test_the_policy_hands_states_on():
    module = make("lstm")
    policy = TorchPolicy(VECTOR, SPACES["discrete"], module.model, module=module)
    assert policy.is_recurrent()
    assert [state.shape for state in policy.get_initial_state()] == [(6,), (6,)]
    obs = np.ones((2, 3), np.float32)
    states = [np.repeat(state[None], 2, 0) for state in policy.get_initial_state()]
    actions, states, extras = policy.compute_actions(obs, states, explore=False)
    assert list(extras) == [col.ACTION_DIST_INPUTS]
    again = policy.compute_actions(obs, states, explore=False)[2]
    assert not np.array_equal(extras[col.ACTION_DIST_INPUTS], again[col.ACTION_DIST_INPUTS])
    assert actions.shape == (2,)


@pytest.mark.parametrize("free_log_std", [False, True])
def test_standard_deviations_start_where_they_should(free_log_std):
    module = make("gru", actions="box", free_log_std=free_log_std, log_std_init=-1.0)
    batch = random_batch(module, [3, 1], np.random.default_rng(0))
    log_std = module.forward_train(batch)[col.ACTION_DIST_INPUTS][:, 2:]
    np.testing.assert_allclose(log_std.detach(), -1.0, atol=0.0 if free_log_std else 0.2)


ATTENTION = ModelConfig(
    hidden=(8,),
    use_attention=True,
    attention_num_transformer_units=2,
    attention_dim=6,
    attention_num_heads=2,
    attention_head_dim=4,
    attention_memory=3,
    attention_use_n_prev_actions=2,
    attention_use_n_prev_rewards=1,
    max_seq_len=4,
)


def test_attention_forgets_what_is_older_than_its_memory():
    torch.manual_seed(0)
    model = ATTENTION.model_copy(
        update={
            "attention_num_transformer_units": 1,
            "attention_use_n_prev_actions": 0,
            "attention_use_n_prev_rewards": 0,
        }
    )
    module = build_module(VECTOR, SPACES["discrete"], model)
    obs = torch.randn(6, 3)
    batch = {"obs": obs, "state_in_0": torch.zeros(1, 3, 6), "seq_lens": torch.tensor([6])}
    before = module.compute_values(batch)
    changed = module.compute_values({**batch, "obs": torch.cat((obs[:1] + 1, obs[1:]))})
    differs = (before != changed).tolist()
    assert differs == [True, True, True, True, False, False], "itself and three steps"


def test_attention_asks_for_its_memory():
    module = build_module(VECTOR, SPACES["discrete"], ATTENTION)
    views = module.view_requirements
    assert (views["state_in_1"].data_col, views["state_in_1"].shift) == ("state_out_1", "-3:-1")
    assert views["state_in_1"].batch_repeat_value == 4
    assert views["prev_n_actions"].steps == (-2, -1)
    assert [state.shape for state in module.initial_state()] == [(6,), (6,)]
