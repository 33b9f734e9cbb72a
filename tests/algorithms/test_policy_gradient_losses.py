"""The losses of PG and A2C against slow transcriptions, and the step on microbatches."""

import numpy as np
import pytest
import torch
from loss_cases import DISCRETE, actor_critic, check_gradients, tensors

from rlrun.algorithms.a2c import a2c_loss
from rlrun.algorithms.pg import pg_loss
from rlrun.config.schema import LearnersConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner

NAMES = (col.ACTIONS, col.ADVANTAGES, col.VALUE_TARGETS)
COEFFICIENTS = {"vf_loss_coeff": 0.5, "entropy_coeff": 0.01}
LOSSES = {"PG": (pg_loss, {}), "A2C": (a2c_loss, COEFFICIENTS)}


def make_batch(n=11):
    rng = np.random.default_rng(0)
    storage = rng.normal(size=(n + 1, 3)).astype(np.float32)
    batch = SampleBatch(
        {
            col.ACTIONS: rng.integers(4, size=n),
            col.ADVANTAGES: rng.normal(size=n).astype(np.float32),
            col.VALUE_TARGETS: rng.normal(size=n).astype(np.float32),
        }
    )
    batch.set_shared(col.OBS, storage, np.arange(n))
    batch.set_shared(col.NEXT_OBS, storage, np.arange(1, n + 1))
    return batch


def make_rows():
    batch = make_batch()
    return tensors({name: batch[name] for name in (col.OBS, *NAMES)})


def slow_loss(name, module, rows):
    """Row by row, with the probabilities written out."""
    with torch.no_grad():
        outputs = module.forward_train(rows)
    logits, values = outputs[col.ACTION_DIST_INPUTS].numpy(), outputs[col.VF_PREDS].numpy()
    policy = value = entropy = 0.0
    n = len(values)
    for i in range(n):
        p = np.exp(logits[i]) / np.exp(logits[i]).sum()
        policy -= np.log(p[rows[col.ACTIONS][i]]) * rows[col.ADVANTAGES][i].item() / n
        value += 0.5 * (values[i] - rows[col.VALUE_TARGETS][i].item()) ** 2 / n
        entropy -= float((p * np.log(p)).sum()) / n
    return policy if name == "PG" else policy + 0.5 * value - 0.01 * entropy


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_the_papers(name):
    module, rows = actor_critic(DISCRETE), make_rows()
    loss, arguments = LOSSES[name]
    total, statistics = loss(module, rows, **arguments)
    assert total.item() == pytest.approx(slow_loss(name, module, rows), rel=1e-5)
    assert all(not value.requires_grad for value in statistics.values())


@pytest.mark.parametrize("name", LOSSES)
def test_the_gradient_agrees_with_finite_differences(name, float64):
    loss, arguments = LOSSES[name]
    module, rows = float64(actor_critic(DISCRETE)), float64(make_rows())
    check_gradients(module, lambda: loss(module, rows, **arguments)[0])


def test_pg_leaves_the_value_function_alone():
    module = actor_critic(DISCRETE)
    pg_loss(module, make_rows())[0].backward()
    assert all(p.grad is None for p in module.vf.parameters())
    assert all(p.grad is not None for p in module.pi.parameters())


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", [1, 4, 11, 64])
def test_microbatches_add_up_to_the_step_of_the_whole_batch(name, size):
    """The last microbatch is smaller and must weigh less; clipping sees the sum, not the parts."""
    loss, arguments = LOSSES[name]
    weights, norms = [], []
    for microbatch_size in (None, size):
        settings = TrainingConfig(grad_clip=0.1)
        learner = Learner(actor_critic(DISCRETE), settings, LearnersConfig(device="cpu"))
        rows = learner.load(make_batch(), NAMES)
        microbatches = rows.microbatches(microbatch_size)
        statistics = learner.accumulate(microbatches, rows.size, loss, arguments, lr=0.01)
        weights.append(learner.get_weights())
        norms.append({key: float(value) for key, value in statistics.items()})
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert norms[0]["grad_norm"] > 0.1
    np.testing.assert_allclose(*weights, rtol=1e-3, atol=1e-5)
