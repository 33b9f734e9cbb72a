"""DQN with a memory: sequences that begin in stored states, burn-in, and the loss of the rest."""

import numpy as np
import pytest
import torch
from loss_cases import check_gradients

from rlrun import Callbacks, ConfigError, DQNConfig
from rlrun.algorithms.sequence_replay import (
    kept_columns,
    load_sequences,
    sequence_errors,
    sequence_loss,
    warmed_up,
)
from rlrun.algorithms.targets import rescale, unrescale
from rlrun.data import columns as col
from rlrun.data.sequences import sequence_offsets
from rlrun.replay.sequence_replay_buffer import SequenceReplayBuffer

MODEL = {
    "hidden": [8],
    "lstm_cell_size": 8,
    "max_seq_len": 5,
    "lstm_use_prev_action": True,
    "lstm_use_prev_reward": True,
}


class LooksAtBatches(Callbacks):
    """May read any column, so that runners send all of them."""

    def on_sample_end(self, algorithm, batch):
        pass


@pytest.fixture(scope="module", params=["use_lstm", "use_gru"])
def algorithm(request):
    """Never learns: what is in its buffer was acted with the weights that it has."""
    made = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=2, rollout_fragment_length=7)
        .training(train_batch_size=280, num_steps_sampled_before_learning_starts=5000, n_step=3)
        .model(**MODEL, **{request.param: True})
        .exploration(epsilon=0.3)
        .replay(burn_in=2)
        .callbacks(LooksAtBatches)
        .debugging(seed=3)
        .build()
    )
    made.train()
    yield made
    made.stop()


def sampled(algorithm, burn_in=2, n_step=3, num_sequences=12):
    batch = algorithm.replay.buffers["default_policy"].sample(
        num_sequences, np.random.default_rng(1)
    )
    rows = load_sequences(
        batch,
        algorithm.learner.module,
        torch.device("cpu"),
        burn_in=burn_in,
        n_step=n_step,
        gamma=0.9,
    )
    return batch, rows


def test_unrolled_from_its_stored_state_a_sequence_has_the_values_it_was_acted_with(
    algorithm,
):
    """Across fragments and wherever a sequence begins, as the weights have not changed."""
    module = algorithm.learner.module
    columns = [*kept_columns(module), col.ACTION_DIST_INPUTS]
    buffer = SequenceReplayBuffer(500, length=6, further_columns=columns)
    for _ in range(5):
        buffer.add(algorithm.sample([[7]]))
    batch = buffer.sample(30, np.random.default_rng(0))
    assert max(batch[col.SEQ_LENS]) == 6
    rows = load_sequences(batch, module, torch.device("cpu"), burn_in=0, n_step=1, gamma=0.9)
    with torch.no_grad():
        values = module.forward_train(rows)[col.ACTION_DIST_INPUTS][rows["present"]]
    np.testing.assert_allclose(values, batch[col.ACTION_DIST_INPUTS], rtol=1e-4, atol=1e-5)
    starts = sequence_offsets(batch[col.SEQ_LENS])[:-1]
    inside = batch[col.T][starts] > 0
    assert inside.any()
    assert np.abs(batch["state_in_0"][inside]).max() > 0.0


@pytest.mark.parametrize("value_rescaling", [False, True])
def test_the_loss_equals_each_step_unrolled_by_hand(algorithm, value_rescaling):
    module = algorithm.learner.module
    target = algorithm.build_module()
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.mul_(0.7)
    batch, rows = sampled(algorithm)
    rows[col.WEIGHTS] = torch.rand(len(rows[col.WEIGHTS]))
    total, statistics = sequence_loss(
        module, rows, target=target, double_q=True, value_rescaling=value_rescaling
    )

    def scaled(value, function):
        return function(torch.tensor(value)).item() if value_rescaling else value

    def unrolled(network, first, length):
        """Values after each observation of a sequence, one step at a time."""
        k = int(np.searchsorted(starts, first))
        states = {name: batch[name][k : k + 1] for name in batch if name.startswith("state_in_")}
        found = []
        for i in range(length + 1):
            prefix, row = ("new_", first + length - 1) if i == length else ("", first + i)
            step = {
                name: torch.from_numpy(np.array(batch[f"{prefix}{name}"][row : row + 1]))
                for name in (col.OBS, "prev_actions", "prev_rewards")
            }
            step |= {name: torch.as_tensor(value) for name, value in states.items()}
            with torch.no_grad():
                outputs = network.forward_inference(step)
            found.append(outputs[col.ACTION_DIST_INPUTS][0].numpy())
            states = {name: outputs[name.replace("state_in_", "state_out_")] for name in states}
        return found

    lengths = batch[col.SEQ_LENS]
    starts = sequence_offsets(lengths)[:-1]
    loss, learned = 0.0, 0
    for first, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        q, q_target = unrolled(module, first, length), unrolled(target, first, length)
        for i in range(length):
            row = first + i
            if i < 2 and batch[col.T][first] > 0:
                assert statistics["td_errors"][row].isnan()
                continue
            goal, k = 0.0, 0
            while k < 3 and i + k < length:
                goal += 0.9**k * batch[col.REWARDS][row + k]
                k += 1
            if not batch[col.TERMINATEDS][row + k - 1]:
                bootstrap = q_target[i + k][np.argmax(q[i + k])]
                goal += 0.9**k * scaled(bootstrap, unrescale)
            error = q[i][batch[col.ACTIONS][row]] - scaled(goal, rescale)
            found = statistics["td_errors"][row].item()
            assert found == pytest.approx(error, rel=1e-3, abs=1e-5)
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            loss += rows[col.WEIGHTS][row].item() * huber
            learned += 1
    assert 0 < learned < len(batch)
    assert total.item() == pytest.approx(loss / learned, rel=1e-4)


def test_no_gradient_flows_through_burn_in(algorithm):
    """Gradients are those of sequences that begin behind it, in states that are just numbers."""
    module, target = (
        algorithm.learner.module,
        algorithm.replay.updaters["default_policy"].target.module,
    )
    batch, rows = sampled(algorithm)
    starts = sequence_offsets(batch[col.SEQ_LENS])[:-1]
    expected = (batch[col.T][starts] > 0) & (batch[col.SEQ_LENS] > 2)
    np.testing.assert_array_equal(rows["warmed"], np.flatnonzero(expected))
    assert 0 < expected.sum() < len(starts)

    def gradient(rows):
        module.zero_grad()
        sequence_loss(module, rows, target=target, double_q=True)[0].backward()
        return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])

    rows["burn_in_obs"].requires_grad_()
    found = gradient(rows)
    assert rows["burn_in_obs"].grad is None
    behind = {**warmed_up(module, rows), "warmed": rows["warmed"][:0]}  # both networks are alike
    torch.testing.assert_close(found, gradient(behind), rtol=1e-4, atol=1e-6)
    _, through = sampled(algorithm, burn_in=0)
    through["learned"] = rows["learned"]
    assert (gradient(through) - found).abs().max() > 1e-4


def test_the_gradient_agrees_with_finite_differences(algorithm, monkeypatch, float64):
    """Without burn-in, through which no gradient flows, though it moves the loss."""
    module, target = (float64(algorithm.build_module()) for _ in range(2))
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.mul_(0.7)
    _, rows = sampled(algorithm, burn_in=0)
    rows = float64(rows)
    real = torch.Tensor.to  # one-hot actions and rewards are made float32 on the way
    monkeypatch.setattr(
        torch.Tensor,
        "to",
        lambda x, dtype, *a, **k: real(x, torch.float64 if dtype is torch.float32 else dtype),
    )
    arguments = {"target": target, "double_q": True}
    check_gradients(module, lambda: sequence_loss(module, rows, **arguments)[0])


def test_burn_in_leads_to_the_states_that_its_steps_led_to_when_they_were_acted(algorithm):
    """The weights are those of then, so the state behind the burn-in is the one that was stored."""
    batch, rows = sampled(algorithm)
    states = warmed_up(algorithm.learner.module, rows)
    warmed = rows["warmed"].numpy()
    starts = sequence_offsets(batch[col.SEQ_LENS])[:-1]
    behind = batch[col.ITEM_IDS][starts[warmed] + 2].tolist()
    # So many sequences that one of them begins at each step that the buffer holds.
    every, _ = sampled(algorithm, num_sequences=5000)
    firsts = every[col.ITEM_IDS][sequence_offsets(every[col.SEQ_LENS])[:-1]].tolist()
    stored = [firsts.index(step) for step in behind]
    for name in [name for name in rows if name.startswith("state_in_")]:
        np.testing.assert_allclose(states[name][warmed], every[name][stored], rtol=1e-4, atol=1e-5)


def test_the_error_of_a_sequence_mixes_the_highest_and_the_mean_of_its_learned_steps(algorithm):
    batch, _ = sampled(algorithm)
    errors = np.arange(1.0, len(batch) + 1.0, dtype=np.float32)
    starts = sequence_offsets(batch[col.SEQ_LENS])[:-1]
    lengths = batch[col.SEQ_LENS]
    errors[: lengths[0]] = np.nan  # nothing was learned of the first sequence
    errors[starts[lengths > 1]] = np.nan  # nor in the first step of any that has more
    ids, found = sequence_errors(batch, errors)
    assert ids.tolist() == batch[col.ITEM_IDS][starts[1:]].tolist()
    for error, steps in zip(found, np.split(errors, starts[1:])[1:], strict=True):
        own = steps[~np.isnan(steps)]
        assert error == pytest.approx(0.9 * own.max() + 0.1 * own.mean(), rel=1e-6)


def test_what_no_memory_learns_from_is_refused():
    config = DQNConfig().environment("CartPole-v1")
    with pytest.raises(ConfigError, match=r"model\.use_attention.*does not replay"):
        config.model(use_attention=True).experiment()
    config = DQNConfig().environment("CartPole-v1").replay(burn_in=3)
    with pytest.raises(ConfigError, match=r"replay\.burn_in.*no memory"):
        config.experiment()
    config = DQNConfig().environment("CartPole-v1").model(use_gru=True).training(num_atoms=51)
    with pytest.raises(ConfigError, match=r"training\.num_atoms.*memory"):
        config.experiment()
