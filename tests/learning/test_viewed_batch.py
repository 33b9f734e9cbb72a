"""Train batches of modules that see more than the present observation."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config.schema import (
    EnvRunnersConfig,
    EnvSpec,
    LearnersConfig,
    ModelConfig,
    TrainingConfig,
)
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.view_requirement import ViewRequirement
from rlrun.learning.learner import Learner
from rlrun.learning.process_group import part_of_rank
from rlrun.learning.viewed_batch import SequenceIndex
from rlrun.policies.catalog import build_module
from rlrun.policies.policy import state_names
from rlrun.policies.rl_module import RLModule
from rlrun.policies.torch_policy import TorchPolicy
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest

LSTM = ModelConfig(
    hidden=(8,),
    use_lstm=True,
    lstm_cell_size=6,
    max_seq_len=5,
    lstm_use_prev_action=True,
    lstm_use_prev_reward=True,
)

ATTENTION = ModelConfig(
    hidden=(8,), use_attention=True, attention_dim=6, attention_memory=4, max_seq_len=5
)


class Stacked(RLModule):
    """Looks at the last three observations and at two rewards."""

    def __init__(self, observation_space, action_space, model):
        super().__init__(observation_space, action_space, model)
        self.view_requirements["obs"] = ViewRequirement(space=observation_space, shift="-2:0")
        self.view_requirements["two_rewards"] = ViewRequirement("rewards", shift=[-1, -3])
        self.net = torch.nn.Linear(3 * 4 + 2, 3)

    def forward_train(self, batch):
        x = torch.cat([batch["obs"].flatten(1), batch["two_rewards"]], dim=1)
        outputs = self.net(x)
        return {col.ACTION_DIST_INPUTS: outputs[:, :2], col.VF_PREDS: outputs[:, 2]}


class TwiceStacked(Stacked):
    """Looks at the last two observations apart from the three."""

    def __init__(self, observation_space, action_space, model):
        super().__init__(observation_space, action_space, model)
        self.view_requirements["last_two"] = ViewRequirement(
            "obs", space=observation_space, shift="-1:0"
        )

    def forward_train(self, batch):
        assert batch["last_two"].shape[1:] == (2, 4)
        return super().forward_train(batch)


STACKED = ModelConfig(use=f"{__name__}:Stacked")
TWICE_STACKED = ModelConfig(use=f"{__name__}:TwiceStacked")


def sampled(model, lengths, num_envs=2, max_episode_steps=13, **settings):
    runner = EnvRunner(
        RunnerSpec(
            EnvSpec(use="CartPole-v1", kwargs={"max_episode_steps": max_episode_steps}),
            EnvRunnersConfig(num_envs_per_env_runner=num_envs, **settings),
            model=model,
            policy_factory=TorchPolicy,
        )
    )
    batches = [
        runner.sample_fragment(SampleRequest(i, length)).batch for i, length in enumerate(lengths)
    ]
    return runner, SampleBatch.concat_samples(batches)


def loaded(runner, batch):
    learner = Learner(
        build_module(
            runner.policy.observation_space,
            gym.spaces.Discrete(2),
            runner.spec.model,
        ),
        TrainingConfig(),
        LearnersConfig(device="cpu"),
    )
    learner.parameters.load(runner.policy.get_weights())
    return learner, learner.load(batch, (col.ACTIONS, col.T, col.EPS_ID))


@settings(max_examples=15)
@given(
    model=st.sampled_from([LSTM, ATTENTION, STACKED]),
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    chunk=st.sampled_from([1, 7, 4096]),
)
def test_outputs_equal_acting_and_the_step_after(model, lengths, chunk):
    runner, batch = sampled(model, lengths)
    learner, rows = loaded(runner, batch)
    with torch.no_grad():
        inputs, values, next_values = (x.numpy() for x in rows.outputs(learner.module, chunk))
    np.testing.assert_allclose(inputs, batch[col.ACTION_DIST_INPUTS], atol=1e-6)
    # Within an episode's chunk the value of what a step led to is that of the step after it.
    same = (batch[col.EPS_ID][1:] == batch[col.EPS_ID][:-1]) & (
        batch[col.UNROLL_ID][1:] == batch[col.UNROLL_ID][:-1]
    )
    np.testing.assert_allclose(next_values[:-1][same], values[1:][same], atol=1e-5)
    if model is LSTM:
        check_last_values(runner, batch, next_values)


def check_last_values(runner, batch, next_values):
    """V of the observation after a sequence, in the state that the sequence led to."""
    module, begin = runner.policy.module, 0
    for sequence, length in enumerate(batch[col.SEQ_LENS]):
        states = {name: batch[name][sequence][None] for name in state_names(batch)}
        states = {name: torch.from_numpy(state) for name, state in states.items()}
        with torch.no_grad():
            for row in range(begin, begin + length):
                step = {
                    name: torch.from_numpy(np.array(batch[name][row]))[None]
                    for name in ("obs", "prev_actions", "prev_rewards")
                }
                outs = module.forward_inference({**step, **states})
                states = {name: outs[name.replace("_in_", "_out_")] for name in states}
            last = {
                "obs": torch.from_numpy(np.array(batch["new_obs"][row]))[None],
                "prev_actions": torch.tensor([batch["actions"][row]]),
                "prev_rewards": torch.tensor([batch["rewards"][row]]),
            }
            value = float(module.compute_values({**last, **states}))
        assert next_values[row] == pytest.approx(value, abs=1e-5)
        begin += length


@pytest.mark.parametrize("length", [1, 2, 3])
def test_what_is_seen_when_acting_does_not_depend_on_where_fragments_are_cut(length):
    """Episodes of the two sub-environments begin at different steps."""
    acted = []
    for fragments in ([120], [length] * (120 // length)):
        torch.manual_seed(0)
        _, batch = sampled(STACKED, fragments, max_episode_steps=90, explore=False)
        order = np.lexsort([batch[name] for name in (col.T, col.EPS_ID, col.ENV_ID)])
        acted.append(batch[col.ACTION_DIST_INPUTS][order])
    np.testing.assert_allclose(acted[1], acted[0], atol=1e-6)


@pytest.mark.parametrize("model", [LSTM, STACKED])
@pytest.mark.parametrize("size", [1, 7, 16, 1000])
def test_minibatches_hold_every_row_once(model, size):
    runner, batch = sampled(model, [17, 9])
    _, rows = loaded(runner, batch)
    minibatches = list(rows.minibatches(2, size, np.random.default_rng(0)))
    seen = [
        row for m in minibatches for row in zip(m["eps_id"].tolist(), m["t"].tolist(), strict=True)
    ]
    expected = sorted(zip(batch["eps_id"].tolist(), batch["t"].tolist(), strict=True))
    assert sorted(seen[: len(batch)]) == sorted(seen[len(batch) :]) == expected
    if size < 1000:
        assert seen[: len(batch)] != seen[len(batch) :]
    for minibatch in minibatches:
        if model is STACKED:
            assert len(minibatch["t"]) <= size
            assert minibatch["obs"].shape[1:] == (3, 4)
            continue
        # Whole sequences, in the order of their steps, begun within the size.
        lengths = minibatch["seq_lens"].tolist()
        assert sum(lengths[:-1]) < size
        for chunk in minibatch["t"].split(lengths):
            assert (chunk.diff() == 1).all()
        assert len(minibatch["state_in_0"]) == len(lengths)


@pytest.mark.parametrize("model", [LSTM, STACKED])
@pytest.mark.parametrize("size", [1, 7, None])
def test_microbatches_hold_every_row_in_order(model, size):
    runner, batch = sampled(model, [17, 9])
    _, rows = loaded(runner, batch)
    parts = list(rows.microbatches(size))
    assert [t for part in parts for t in part["t"].tolist()] == batch["t"].tolist()
    if model is LSTM:
        lengths = [n for part in parts for n in part["seq_lens"].tolist()]
        assert lengths == list(batch["seq_lens"])
    if size is None:
        assert len(parts) == 1


def test_sequences_keep_their_states():
    runner, batch = sampled(LSTM, [17])
    _, rows = loaded(runner, batch)
    starts = np.cumsum(batch["seq_lens"]) - batch["seq_lens"]
    stored = {
        (int(batch["eps_id"][a]), int(batch["t"][a])): state
        for a, state in zip(starts, batch["state_in_0"], strict=True)
    }
    for minibatch in rows.minibatches(1, 10, np.random.default_rng(0)):
        begins = minibatch["seq_lens"].cumsum(0) - minibatch["seq_lens"]
        for a, state in zip(begins.tolist(), minibatch["state_in_0"], strict=True):
            key = int(minibatch["eps_id"][a]), int(minibatch["t"][a])
            np.testing.assert_array_equal(state, stored[key])


def test_views_of_the_same_observations_are_one_storage_on_the_device_too(monkeypatch):
    runner, batch = sampled(TWICE_STACKED, [30])
    moved, from_numpy = [], torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda x: moved.append(x.shape) or from_numpy(x))
    loaded(runner, batch)
    assert moved.count(batch.shared("obs")[0].shape) == 1
    assert (2 * len(batch), 3) in moved  # the index of one view
    assert (2 * len(batch), 3, 4) not in moved


class SeesFramesAlone(RLModule):
    """The last three observations, under another name than `obs`."""

    def __init__(self, observation_space, action_space, model):
        super().__init__(observation_space, action_space, model)
        frames = ViewRequirement("obs", space=observation_space, shift="-2:0")
        self.view_requirements = {"frames": frames}
        self.net = torch.nn.Linear(3 * 4, 3)

    def forward_train(self, batch):
        outputs = self.net(batch["frames"].flatten(1))
        return {col.ACTION_DIST_INPUTS: outputs[:, :2], col.VF_PREDS: outputs[:, 2]}


def test_rows_without_an_observation_of_that_name_are_counted():
    learner, rows = loaded(*sampled(ModelConfig(use=f"{__name__}:SeesFramesAlone"), [7]))

    def loss(module, rows):
        values = module.forward_train(rows)[col.VF_PREDS]
        return values.mean(), {"t": rows[col.T].float().mean()}

    found = learner.accumulate(rows.microbatches(5), rows.size, loss, {}, lr=1e-3)
    assert found["t"] == pytest.approx(rows.columns[col.T].float().mean().item())
    assert sum(part_of_rank(rows.columns, rank, 3)[1] for rank in range(3)) == pytest.approx(1.0)


def test_slices_hold_as_many_whole_sequences_as_fit():
    index = SequenceIndex(np.array([2, 1, 4, 9, 1]), whole=True)  # each with its next step
    slices = [(span.start, span.stop, who.tolist()) for span, who in index.slices(6)]
    assert slices == [(0, 5, [0, 1]), (5, 10, [2]), (10, 20, [3]), (20, 22, [4])]
