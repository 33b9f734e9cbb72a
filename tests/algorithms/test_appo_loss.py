"""APPO's loss, row by row and by finite differences."""

import numpy as np
import pytest
import torch
from loss_cases import DISCRETE, actor_critic, check_gradients, on_policy_rows

from rlrun.algorithms.appo import BEHAVIOUR_LOGP, appo_loss
from rlrun.data import columns as col

N = 9
ARGUMENTS = {"clip_param": 0.2, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01, "kl_coeff": 0.3}


@pytest.fixture
def case(float64):
    """A module, and rows of which a third were sampled with a much higher probability."""
    target = actor_critic(DISCRETE, seed=2)
    rows = float64(on_policy_rows(target, DISCRETE, N, drift=0.0, seed=1))
    logp, rng = rows[col.ACTION_LOGP], np.random.default_rng(1)
    behaviour = logp + torch.tensor(rng.normal(scale=0.3, size=N))
    behaviour[::3] = logp[::3] + 1.5
    return float64(actor_critic(DISCRETE)), {**rows, BEHAVIOUR_LOGP: behaviour}


def softmax(logits):
    return np.exp(logits) / np.exp(logits).sum()


def test_the_loss_row_by_row(case):
    module, rows = case
    with torch.no_grad():
        outputs = module.forward_train(rows)
    logits, values = outputs[col.ACTION_DIST_INPUTS].numpy(), outputs[col.VF_PREDS].numpy()
    old, clipped, floored, total = rows[col.ACTION_DIST_INPUTS].numpy(), 0, 0, 0.0
    for i in range(N):
        p, q = softmax(logits[i]), softmax(old[i])
        a, advantage = int(rows[col.ACTIONS][i]), rows[col.ADVANTAGES][i].item()
        half = np.exp(rows[BEHAVIOUR_LOGP][i].item()) / 2
        ratio = p[a] / max(q[a], half)
        floored += half > q[a]
        within = min(max(ratio, 0.8), 1.2)
        clipped += within != ratio
        total -= min(ratio * advantage, within * advantage)
        total += 0.5 * 0.5 * (values[i] - rows[col.VALUE_TARGETS][i].item()) ** 2
        total += 0.01 * float((p * np.log(p)).sum())
        total += 0.3 * float((q * np.log(q / p)).sum())
    assert floored >= 3
    loss, statistics = appo_loss(module, rows, **ARGUMENTS)
    assert loss.item() == pytest.approx(total / N, rel=1e-6)
    assert statistics["clip_fraction"].item() == pytest.approx(clipped / N)
    assert 0 < clipped < N
    assert all(not value.requires_grad for value in statistics.values())


def test_the_gradient_agrees_with_finite_differences(case):
    module, rows = case
    check_gradients(module, lambda: appo_loss(module, rows, **ARGUMENTS)[0])


def test_an_infinite_kl_does_not_matter_without_its_coefficient(case):
    module, rows = case
    rows[col.ACTION_DIST_INPUTS] = torch.full((N, 4), -torch.inf)
    loss, statistics = appo_loss(module, rows, **{**ARGUMENTS, "kl_coeff": 0.0})
    assert torch.isfinite(loss)
    assert "kl" not in statistics
