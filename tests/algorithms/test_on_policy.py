"""`train_one_step`, `multi_gpu_train_one_step`: how many steps, on which rows, of which policy."""

import numpy as np
import pytest
import torch

from rlrun import PGConfig, SampleBatch, multi_gpu_train_one_step, train_one_step
from rlrun.data import columns as col

BATCH = 48


def negative_logp(module, rows, *, scale):
    """Makes the actions of all rows likelier; says which rows it was given."""
    outputs = module.forward_train(rows)
    logp = module.distribution.logp(outputs[col.ACTION_DIST_INPUTS], rows[col.ACTIONS])
    loss = -scale * logp.mean()
    return loss, {"loss": loss.detach(), "rewards": rows[col.REWARDS].mean()}


@pytest.fixture
def build(built):
    def building(**sections):
        config = (
            PGConfig()
            .environment("MultiAgentCartPole" if "multi_agent" in sections else "CartPole-v1")
            .model(hidden=[8])
            .training(train_batch_size=BATCH, lr=[[0, 0.0], [BATCH, 0.5]])
            .debugging(seed=1)
        )
        for section, values in sections.items():
            config = getattr(config, section)(**values)
        return built(config)

    return building


@pytest.mark.parametrize("microbatch_size", [None, 7, BATCH])
def test_one_step_is_one_gradient_step_on_all_rows(build, microbatch_size):
    algorithm, whole = build(), build()
    batch = algorithm.sample()
    result = train_one_step(
        algorithm, batch, negative_logp, {"scale": 2.0}, microbatch_size=microbatch_size
    )
    train_one_step(whole, whole.sample(), negative_logp, {"scale": 2.0})
    assert algorithm.learner.get_state()["optimizer"]["num_steps"] == 1
    row = result["default_policy"]
    assert row["num_agent_steps_trained"] == BATCH
    assert row["learner_stats"]["lr"] == 0.5  # the schedule's, at the env steps so far
    assert row["learner_stats"]["rewards"] == pytest.approx(1.0)
    expected = -2.0 * batch[col.ACTION_LOGP].mean()  # no step lies between acting and the loss
    assert row["learner_stats"]["loss"] == pytest.approx(expected, abs=1e-5)
    np.testing.assert_allclose(algorithm.learner.get_weights(), whole.learner.get_weights(), 1e-3)


def test_several_steps_go_through_all_rows_in_each_epoch(build):
    algorithm = build()
    seen = []

    def remembering(module, rows, *, scale):
        seen.append(rows[col.T].tolist())
        return negative_logp(module, rows, scale=scale)

    batch = algorithm.sample()
    result = multi_gpu_train_one_step(
        algorithm, batch, remembering, {"scale": 1.0}, num_epochs=3, minibatch_size=20
    )
    assert [len(rows) for rows in seen] == [20, 20, 8] * 3
    epochs = [[t for rows in seen[i : i + 3] for t in rows] for i in (0, 3, 6)]
    assert all(sorted(epoch) == sorted(batch[col.T].tolist()) for epoch in epochs)
    assert epochs[0] != epochs[1]  # shuffled, each time otherwise
    row = result["default_policy"]
    assert row["num_agent_steps_trained"] == BATCH
    assert row["learner_stats"]["num_updates"] == 9
    assert algorithm.learner.get_state()["optimizer"]["num_steps"] == 9


LSTM = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 5}


@pytest.mark.parametrize("model", [{}, LSTM], ids=["MLP", "LSTM"])
@pytest.mark.parametrize("step", [train_one_step, multi_gpu_train_one_step])
def test_a_loss_finds_what_each_step_led_to(build, step, model):
    algorithm, moved = build(model=model), []

    def looking_ahead(module, rows):
        obs, then = rows[col.OBS], rows[col.NEXT_OBS]
        moved.extend((then[:, 0] - obs[:, 0] - 0.02 * obs[:, 1]).tolist())
        return negative_logp(module, rows, scale=1.0)

    step(algorithm, algorithm.sample(), looking_ahead)
    assert moved == pytest.approx([0.0] * BATCH, abs=1e-5)


@pytest.mark.parametrize("step", [train_one_step, multi_gpu_train_one_step])
def test_a_batch_needs_no_more_than_its_loss_reads(build, step):
    """Recorded actions are imitated without what they led to."""
    algorithm = build()
    sampled = algorithm.sample()
    recorded = SampleBatch({name: sampled[name] for name in (col.OBS, col.ACTIONS, col.REWARDS)})
    result = step(algorithm, recorded, negative_logp, {"scale": 1.0})
    assert result["default_policy"]["num_agent_steps_trained"] == BATCH


@pytest.mark.parametrize("step", [train_one_step, multi_gpu_train_one_step])
def test_each_policy_that_trains_makes_its_step_on_its_own_rows(build, step):
    policies = {"agent_0": {}, "agent_1": {"train": False}}
    algorithm = build(multi_agent={"policies": policies})
    before = algorithm.get_weights()
    batch = algorithm.sample()
    result = step(algorithm, batch, negative_logp, {"scale": 1.0})
    assert set(result) == {"agent_0"}
    assert result["agent_0"]["num_agent_steps_trained"] == len(batch.policy_batches["agent_0"])
    after = algorithm.get_weights()
    changed = {name for name, value in after.items() if not np.array_equal(value, before[name])}
    assert {name.partition("/")[0] for name in changed} == {"agent_0"}


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (np.ones(3), r"ndarray of shape \(3,\)"),
        (1.0, r"ndarray of shape \(1,\)"),
        (torch.ones(BATCH), r"Tensor of shape \(48,\)"),
    ],
)
def test_a_column_that_is_not_of_the_batch_s_rows_is_named(build, column, found):
    algorithm = build()
    batch = algorithm.sample()
    batch["mine"] = column
    with pytest.raises(
        ValueError, match=f"column 'mine' must be an array of the batch's 48 rows, not {found}"
    ):
        train_one_step(algorithm, batch, negative_logp, {"scale": 1.0})


@pytest.mark.parametrize("synced", [True, False])
def test_weights_that_never_reach_the_env_runners_are_told_once(build, caplog, monkeypatch, synced):
    algorithm = build(training={"train_batch_size": 8})
    if not synced:
        monkeypatch.setattr(algorithm, "sync_weights", lambda: None)
    for _ in range(102):
        algorithm.train()
    assert caplog.text.count("never calls sync_weights()") == (not synced)


def test_results_of_other_learners_than_the_policies_come_behind_theirs(build, monkeypatch):
    algorithm = build()
    step = algorithm.training_step
    monkeypatch.setattr(algorithm, "training_step", lambda: {"model": {"loss": 0.5}, **step()})
    learners = algorithm.train()["learners"]
    assert [*learners] == ["default_policy", "model"]
    assert learners["model"] == {"loss": 0.5}
