"""Every network with a memory, around every encoder: steps, sequences and padding are one thing.

All of them are held to the same properties, among them a user's module with views and states of
its own, found by its import path.
"""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config.schema import ModelConfig
from rlrun.connectors.observations import Preprocessor
from rlrun.data import columns as col
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.action_sampling import action_layout
from rlrun.policies.attention import Gate, WindowAttention
from rlrun.policies.catalog import build_module
from rlrun.policies.policy import state_names
from rlrun.policies.recurrent import (
    in_sequences,
    one_hot_actions,
    one_hot_width,
)
from rlrun.policies.rl_module import RLModule
from rlrun.policies.torch_policy import TorchPolicy

NESTED = gym.spaces.Dict(
    {
        "position": gym.spaces.Box(-1, 1, (2,), np.float32),
        "gear": gym.spaces.Discrete(3),
        "flags": gym.spaces.Tuple((gym.spaces.MultiBinary(2), gym.spaces.Discrete(2))),
    }
)
OBSERVATIONS = {
    "vector": gym.spaces.Box(-1, 1, (3,), np.float32),
    "image": gym.spaces.Box(0, 255, (9, 9, 2), np.uint8),
    "nested": Preprocessor(NESTED).output_space,
}
ACTIONS = {
    "discrete": gym.spaces.Discrete(3),
    "box": gym.spaces.Box(-1, 1, (2,), np.float32),
}
CELLS = {"hidden": (6,), "lstm_cell_size": 5, "conv_head": 6, "max_seq_len": 4}
ATTENTION = {
    **CELLS,
    "use_attention": True,
    "attention_num_transformer_units": 2,
    "attention_dim": 6,
    "attention_num_heads": 2,
    "attention_head_dim": 4,
    "attention_memory": 3,
}
PREVIOUS = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
MEMORIES = {
    "lstm": {**CELLS, "use_lstm": True},
    "lstm, previous step": {**CELLS, "use_lstm": True, **PREVIOUS},
    "lstm, hidden layers of the heads": {
        **{**CELLS, "use_lstm": True, "head_hidden": (3,), "value_hidden": (4, 2)},
    },
    "gru": {**CELLS, "use_gru": True},
    "gru, previous step": {**CELLS, "use_gru": True, **PREVIOUS},
    "attention": ATTENTION,
    "attention, previous steps": {
        **ATTENTION,
        "attention_use_n_prev_actions": 2,
        "attention_use_n_prev_rewards": 3,
    },
}
USED = {"own encoder": f"{__name__}:OwnEncoder", "own module": f"{__name__}:OwnModule"}


class OwnEncoder(torch.nn.Module):
    """A user's encoder; the memory goes behind it."""

    def __init__(self, space, width=5):
        super().__init__()
        self.output_size = width
        self.layer = torch.nn.Linear(int(np.prod(space.shape)), width)

    def forward(self, obs):
        return torch.relu(self.layer(obs.flatten(1)))


class OwnModule(RLModule):
    """A user's module: two states, a view of three observations and one of earlier actions."""

    def __init__(self, observation_space, action_space, model, decay=0.5):
        super().__init__(observation_space, action_space, model)
        self.view_requirements["obs"] = ViewRequirement(space=observation_space, shift="-2:0")
        self.view_requirements["older"] = ViewRequirement(
            "actions", space=action_space, shift=[-3, -1]
        )
        width = 3 * int(np.prod(observation_space.shape))
        width += 2 * int(np.prod(action_space.shape or (1,)))
        self.layer, self.decay = torch.nn.Linear(width, 4), decay
        self.pi = torch.nn.Linear(4, self.distribution.num_inputs)
        self.vf = torch.nn.Linear(4, 1)

    def initial_state(self):
        return [torch.zeros(4), torch.ones(1)]

    def traced(self, batch):
        """What a decaying sum holds after each step, divided by the sum of its weights."""
        parts = [batch["obs"].float().flatten(1) / 255, batch["older"].float().flatten(1)]
        x = torch.tanh(self.layer(torch.cat(parts, dim=1)))
        sequences, back = in_sequences(x, batch)
        trace, weight = batch["state_in_0"], batch["state_in_1"]
        steps = []
        for step in sequences.unbind(1):
            trace, weight = self.decay * trace + step, self.decay * weight + 1
            steps.append(trace / weight)
        return back(torch.stack(steps, 1)), (trace, weight)

    def forward_train(self, batch):
        features, _ = self.traced(batch)
        return {"action_dist_inputs": self.pi(features), "vf_preds": self.vf(features)[:, 0]}

    def forward_inference(self, batch):
        features, (trace, weight) = self.traced(batch)
        outs = {"state_out_0": trace, "state_out_1": weight}
        return {"action_dist_inputs": self.pi(features), **outs}


def make(memory, used, observations, actions, **more):
    torch.manual_seed(0)
    settings_of = {} if used == "own module" else MEMORIES[memory]
    use = {} if used is None else {"use": USED[used]}
    model = ModelConfig.model_validate({**settings_of, **use, **more})
    return build_module(OBSERVATIONS[observations], ACTIONS[actions], model)


def random_batch(module, seq_lens, rng):
    """Rows of sequences one after the other, with all views of the module."""
    num_rows = sum(seq_lens)
    batch = {col.SEQ_LENS: torch.tensor(seq_lens)}
    for name, view in module.view_requirements.items():
        source = view.data_col or name
        count = len(seq_lens) if name.startswith(col.STATE_IN_PREFIX) else num_rows
        shape = (count, len(view.steps)) if view.time_axis else (count,)
        batch[name] = torch.from_numpy(random_rows(module, source, shape, rng))
    return batch


def random_rows(module, source, shape, rng):
    if source == col.OBS and module.observation_space.dtype == np.uint8:
        return rng.integers(0, 256, (*shape, *module.observation_space.shape), dtype=np.uint8)
    if source == col.ACTIONS and isinstance(module.action_space, gym.spaces.Discrete):
        return rng.integers(0, module.action_space.n, shape)
    row = {col.OBS: module.observation_space.shape, col.ACTIONS: module.action_space.shape}
    if source.startswith(col.STATE_OUT_PREFIX):
        state = module.initial_state()[int(source.removeprefix(col.STATE_OUT_PREFIX))]
        return 0.5 + 0.1 * rng.random((*shape, *state.shape), dtype=np.float32)
    return rng.normal(size=(*shape, *row.get(source, ()))).astype(np.float32)


def step_by_step(module, batch):
    """Distribution inputs and values of all rows, as acting computes them: one at a time."""
    states = state_names(batch)
    row, inputs, values = 0, [], []
    for sequence, length in enumerate(batch[col.SEQ_LENS].tolist()):
        pending = {name: batch[name][sequence][None] for name in states}
        for _ in range(length):
            others = batch.keys() - {col.SEQ_LENS, *states}
            step = {**{name: batch[name][row][None] for name in others}, **pending}
            outputs = module.forward_inference(step)
            inputs.append(outputs[col.ACTION_DIST_INPUTS])
            values.append(module.compute_values(step))
            for name in states:
                out = outputs[name.replace("_in_", "_out_")]
                if module.view_requirements[name].time_axis:  # the oldest of M steps drops out
                    out = torch.cat((pending[name][:, 1:], out[:, None]), dim=1)
                pending[name] = out
            row += 1
    return torch.cat(inputs), torch.cat(values)


CASES = st.one_of(
    st.tuples(st.sampled_from(sorted(MEMORIES)), st.none(), st.sampled_from(sorted(OBSERVATIONS))),
    st.tuples(
        st.sampled_from(sorted(MEMORIES)),
        st.just("own encoder"),
        st.sampled_from(["nested", "vector"]),
    ),
    st.tuples(st.none(), st.just("own module"), st.sampled_from(sorted(OBSERVATIONS))),
)


@settings(max_examples=40)
@given(
    case=CASES,
    actions=st.sampled_from(sorted(ACTIONS)),
    seq_lens=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    seed=st.integers(0, 2**16),
)
def test_sequences_are_the_same_as_steps(case, actions, seq_lens, seed):
    module = make(*case, actions)
    batch = random_batch(module, seq_lens, np.random.default_rng(seed))
    with torch.no_grad():
        whole = module.forward_train(batch)
        inputs, values = step_by_step(module, batch)
        np.testing.assert_allclose(whole[col.ACTION_DIST_INPUTS], inputs, atol=1e-6)
        np.testing.assert_allclose(whole[col.VF_PREDS], values, atol=1e-6)
        np.testing.assert_allclose(module.compute_values(batch), values, atol=1e-6)


@settings(max_examples=40)
@given(
    case=CASES,
    actions=st.sampled_from(sorted(ACTIONS)),
    seq_lens=st.lists(st.integers(1, 6), min_size=2, max_size=5).filter(lambda n: len(set(n)) > 1),
    junk=st.floats(-1e6, 1e6).filter(lambda x: abs(x) > 1e-3),
)
def test_what_the_padding_holds_changes_nothing(case, actions, seq_lens, junk):
    """Neither outputs nor gradients, for any numbers behind the shorter sequences."""
    module = make(*case, actions)
    batch = random_batch(module, seq_lens, np.random.default_rng(1))
    results, padded, pad_with = [], [], in_sequences
    for value in (0.0, junk):

        def pad(steps, batch, value=value):
            sequences, back = pad_with(steps, batch, value)
            padded.append(sequences.shape[:2].numel() - len(steps))
            return sequences, back

        with pytest.MonkeyPatch.context() as patch:
            for place in ("rlrun.policies.recurrent", "rlrun.policies.attention", __name__):
                patch.setattr(f"{place}.in_sequences", pad)
            module.zero_grad()
            outputs = module.forward_train(batch)
            loss = outputs[col.ACTION_DIST_INPUTS].square().sum() + outputs[col.VF_PREDS].sum()
            loss.backward()
        gradients = [parameter.grad.clone() for parameter in module.parameters()]
        results.append([*(output.detach() for output in outputs.values()), *gradients])
    assert sum(padded) > 0
    for plain, with_junk in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, with_junk)


@pytest.mark.parametrize("memory", sorted(MEMORIES))
@pytest.mark.parametrize("observations", sorted(OBSERVATIONS))
def test_the_memory_is_used_and_trained(memory, observations):
    """Outputs depend on the state, and gradients reach every parameter."""
    module = make(memory, None, observations, "discrete")
    batch = random_batch(module, [3, 2], np.random.default_rng(0))
    outputs = module.forward_train(batch)
    changed = module.forward_train({**batch, "state_in_0": batch["state_in_0"] + 0.5})
    assert not torch.equal(outputs[col.VF_PREDS], changed[col.VF_PREDS])
    inputs = torch.linspace(-1, 1, outputs[col.ACTION_DIST_INPUTS].numel())
    (
        (outputs[col.ACTION_DIST_INPUTS].flatten() * inputs).sum() + outputs[col.VF_PREDS].sum()
    ).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_padding_goes_back_and_forth(seq_lens):
    steps = torch.arange(sum(seq_lens) * 2.0).view(-1, 2)
    padded, back = in_sequences(steps, {col.SEQ_LENS: torch.tensor(seq_lens)}, -1.0)
    assert padded.shape == (len(seq_lens), max(seq_lens), 2)
    begin = 0
    for sequence, length in zip(padded, seq_lens, strict=True):
        assert sequence[:length].tolist() == steps[begin : begin + length].tolist()
        assert (sequence[length:] == -1).all(), "padding stands to the right"
        begin += length
    assert back(padded).tolist() == steps.tolist()
    alone, back = in_sequences(steps, {})
    assert alone.shape == (len(steps), 1, 2)
    assert back(alone).tolist() == steps.tolist()


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (gym.spaces.Discrete(3, start=5), [2, 0], [[0, 0, 1], [1, 0, 0]]),
        (gym.spaces.MultiDiscrete([2, 2]), [[1, 0], [0, 1]], [[0, 1, 1, 0], [1, 0, 0, 1]]),
        (ACTIONS["box"], [[0.5, -1.0]], [[0.5, -1.0]]),
        (
            gym.spaces.Tuple((gym.spaces.Discrete(2), ACTIONS["box"])),
            [[1.0, 0.25, 2.0]],
            [[0, 1, 0.25, 2.0]],
        ),
    ],
)
def test_previous_actions_are_one_hot(space, actions, expected):
    encoded = one_hot_actions(torch.tensor(actions), action_layout(space))
    assert encoded.tolist() == expected
    assert encoded.shape[1] == one_hot_width(action_layout(space))


def test_the_previous_step_is_a_view_and_is_used():
    module = make("lstm, previous step", None, "vector", "discrete")
    views = module.view_requirements
    assert (views["prev_actions"].data_col, views["prev_actions"].shift) == ("actions", -1)
    assert (views["prev_rewards"].data_col, views["prev_rewards"].shift) == ("rewards", -1)
    assert views["state_in_1"].batch_repeat_value == 4
    batch = random_batch(module, [2], np.random.default_rng(0))
    before = module.compute_values(batch)
    for name in ("prev_actions", "prev_rewards"):
        changed = {**batch, name: batch[name] + 1}
        assert not torch.equal(module.compute_values(changed), before), name
    assert list(make("gru", None, "vector", "box").view_requirements) == ["state_in_0", "obs"]


def test_the_policy_hands_states_on():
    module = make("lstm", None, "vector", "discrete")
    policy = TorchPolicy(module.observation_space, module.action_space, module.model, module=module)
    assert policy.is_recurrent()
    assert [state.tolist() for state in policy.get_initial_state()] == [[0.0] * 5] * 2
    obs = np.ones((2, 3), np.float32)
    states = [np.repeat(state[None], 2, 0) for state in policy.get_initial_state()]
    actions, states, extras = policy.compute_actions(obs, states, explore=False)
    assert list(extras) == [col.ACTION_DIST_INPUTS]
    again = policy.compute_actions(obs, states, explore=False)[2]
    assert not np.array_equal(extras[col.ACTION_DIST_INPUTS], again[col.ACTION_DIST_INPUTS])
    assert actions.shape == (2,)


@pytest.mark.parametrize("free_log_std", [False, True])
def test_standard_deviations_start_where_they_should(free_log_std):
    settings_of = {"free_log_std": free_log_std, "log_std_init": -1.0}
    module = make("gru", None, "vector", "box", **settings_of)
    batch = random_batch(module, [3, 1], np.random.default_rng(0))
    log_std = module.forward_train(batch)[col.ACTION_DIST_INPUTS][:, 2:]
    np.testing.assert_allclose(log_std.detach(), -1.0, atol=0.0 if free_log_std else 0.2)


def test_the_gate_of_attention_is_that_of_a_gru():
    """Parisotto et al. 2019, section 3.2."""
    gate, x, y = Gate(1, bias=0.5), 0.7, -1.2
    with torch.no_grad():
        for layer, weights in (
            (gate.of_output, [1.0, 2.0, 3.0]),
            (gate.of_input, [-1.0, 3.0]),
            (gate.of_reset, [2.0]),
        ):
            layer.weight.copy_(torch.tensor(weights)[:, None])
    reset = 1 / (1 + math.exp(-(1.0 * y - 1.0 * x)))
    update = 1 / (1 + math.exp(-(2.0 * y + 3.0 * x - 0.5)))
    new = math.tanh(3.0 * y + 2.0 * reset * x)
    expected = (1 - update) * x + update * new
    assert gate(torch.tensor([x]), torch.tensor([y])).item() == pytest.approx(expected, rel=1e-5)


def test_products_of_attention_have_no_bias():
    """Dai et al. 2019, section 3.3; u and v stand for those of the query."""
    attention = WindowAttention(ModelConfig(**ATTENTION))
    names = {name.partition(".")[2] for name, _ in attention.named_parameters()} - {""}
    assert names == {"weight"}


def test_distances_are_sinusoids_of_slower_and_slower_frequencies():
    """Vaswani et al. 2017, section 3.5; from the farthest step to the present one."""
    found = WindowAttention(ModelConfig(**ATTENTION)).sinusoids
    angles = [[m * 10_000 ** (-i / 3) for i in range(3)] for m in (3, 2, 1, 0)]
    expected = [[*map(math.sin, row), *map(math.cos, row)] for row in angles]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_attention_forgets_what_is_older_than_its_memory():
    module = make("attention", None, "vector", "discrete", attention_num_transformer_units=1)
    obs = torch.randn(6, 3)
    batch = {"obs": obs, "state_in_0": torch.zeros(1, 3, 6), "seq_lens": torch.tensor([6])}
    before = module.compute_values(batch)
    changed = module.compute_values({**batch, "obs": torch.cat((obs[:1] + 1, obs[1:]))})
    differs = (before != changed).tolist()
    assert differs == [True, True, True, True, False, False], "itself and three steps"


def test_attention_begins_orthogonal_and_without_a_preference_for_content_or_distance():
    module = make("attention", None, "vector", "discrete")
    singular = torch.linalg.svdvals(module.project.weight)
    torch.testing.assert_close(singular, torch.ones_like(singular))
    for unit in module.units:
        assert not unit.attention.u.any()
        assert not unit.attention.v.any()


def test_attention_asks_for_its_memory():
    module = make("attention, previous steps", None, "vector", "discrete")
    views = module.view_requirements
    assert (views["state_in_1"].data_col, views["state_in_1"].shift) == ("state_out_1", "-3:-1")
    assert views["state_in_1"].batch_repeat_value == 4
    assert views["prev_n_actions"].steps == (-2, -1)
    assert [state.tolist() for state in module.initial_state()] == [[0.0] * 6] * 2
