"""PPO where its parts meet: what is normalised, what ends an update, what dropout leaves alone."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from tiny import learner_stats, train

from rlrun import PPOConfig
from rlrun.algorithms import ppo
from rlrun.algorithms.ppo import PPOTraining
from rlrun.data import columns as col
from rlrun.learning.returns import add_advantages, standardized, standardized_advantages
from rlrun.learning.vtrace import VTraceSettings, add_vtrace, weigh_advantages

OBS_SPACE = gym.spaces.Box(-100, 100, (1,), np.float32)


def experiment(**training):
    """One epoch of 64 rows after the other unless told otherwise."""
    config = PPOConfig().environment("CartPole-v1").model(hidden=[8]).debugging(seed=3)
    return config.training(**{"train_batch_size": 64, "minibatch_size": 16, **training})


def test_the_defaults_that_results_rest_on():
    training = PPOTraining()
    assert training.adam_epsilon == 1e-5
    assert (training.grad_clip, training.grad_clip_by) == (0.5, "global_norm")
    assert training.normalize_advantages == "minibatch"
    assert training.vf_clip_param is training.vf_error_clip is None


@pytest.fixture
def minibatches(monkeypatch):
    """Each minibatch that PPO learns from, and the statistics of it."""
    seen, real = [], ppo.ppo_gradient

    def spy(module, rows, **arguments):
        statistics = real(module, rows, **arguments)
        seen.append((rows, {name: float(value) for name, value in statistics.items()}))
        return statistics

    monkeypatch.setattr(ppo, "ppo_gradient", spy)
    return seen


@pytest.mark.parametrize("how", ["minibatch", "batch", None])
def test_advantages_are_standardized_as_the_setting_says_and_targets_never(built, minibatches, how):
    settings = {"train_batch_size": 256, "minibatch_size": 64, "num_epochs": 1}
    algorithm = built(experiment(**settings, normalize_advantages=how))
    minibatches.clear()
    algorithm.train()
    assert len(minibatches) == 4
    parts = [rows[col.ADVANTAGES] for rows, _ in minibatches]
    targets = np.concatenate([rows[col.VALUE_TARGETS] for rows, _ in minibatches])
    assert targets.min() > 0.5  # a reward of 1 for each step, and values near 0
    assert targets.mean() > 5
    for each in parts if how == "minibatch" else [np.concatenate(parts)]:
        centred = abs(each.mean()) < 1e-5
        assert centred == (how is not None)
        assert (abs(each.std() - 1.0) < 1e-4) == (how is not None)
    if how != "minibatch":
        assert max(abs(part.mean()) for part in parts) > 1e-3


def test_the_update_ends_at_one_and_a_half_times_the_target_kl(built, minibatches):
    settings = {"num_epochs": 5, "lr": 0.01}
    patient = built(experiment(**settings))
    minibatches.clear()
    assert learner_stats(patient)["num_updates"] == 20
    kls = [statistics["approx_kl"] for _, statistics in minibatches]
    limit = 0.9 * max(kls)
    made = next(i for i, kl in enumerate(kls) if kl > limit)
    assert any(kl > limit / 1.5 for kl in kls[:made]), "the example tells 1.5 from nothing"
    for target_kl, updates in ((limit / 1.5, made), (1e6, 20), (1e-12, 1)):
        # The first minibatch moves nothing yet, so the smallest target lets it pass.
        strict = built(experiment(**settings, target_kl=target_kl))
        assert learner_stats(strict)["num_updates"] == updates


@pytest.mark.parametrize("standardizes", [False, True])
def test_rows_count_as_much_as_their_actions_have_become_likelier_and_at_most_twice(
    built, standardizes
):
    algorithm = built(experiment(minibatch_size=64))
    batch, module = algorithm.sample(), algorithm.learner.module
    rows = algorithm.learner.load(batch, (col.ACTIONS,))
    add_advantages(rows, batch, module, 0.99, 0.95)
    rows.prepare = standardized_advantages if standardizes else None
    plain = rows.columns[col.ADVANTAGES]
    likelier = np.resize(np.float32([0.25, 1.0, 1.5, 8.0]), len(batch))
    batch[col.ACTION_LOGP] = rows.columns[col.ACTION_LOGP] - np.log(likelier)
    weigh_advantages(rows, batch)
    (whole,) = rows.minibatches(1, len(batch), np.random.default_rng(0))
    expected = (standardized(plain) if standardizes else plain) * np.minimum(likelier, 2.0)
    found = np.sort(whole[col.ADVANTAGES])  # rows are shuffled
    np.testing.assert_allclose(found, np.sort(expected), rtol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, 0.8, 1.0])
def test_older_weights_having_acted_shorten_traces_and_targets_are_those_of_vtrace(built, lambda_):
    algorithm = built(experiment(minibatch_size=64))
    batch, module = algorithm.sample(), algorithm.learner.module
    rows = algorithm.learner.load(batch, (col.ACTIONS,))
    add_advantages(rows, batch, module, 0.99, lambda_)
    on_policy = rows.columns[col.ADVANTAGES].copy()
    present = rows.columns[col.ACTION_LOGP].copy()
    add_advantages(rows, batch, module, 0.99, lambda_, off_policy=True)
    np.testing.assert_allclose(rows.columns[col.ADVANTAGES], on_policy, rtol=1e-4, atol=1e-4)
    batch[col.ACTION_LOGP] = present - np.log(np.resize(np.float32([0.25, 1.0, 1.5]), len(batch)))
    add_advantages(rows, batch, module, 0.99, lambda_, off_policy=True)
    targets, advantages = rows.columns[col.VALUE_TARGETS], rows.columns[col.ADVANTAGES]
    following = advantages - on_policy
    assert (abs(following).max() > 1e-2) == (lambda_ > 0.0), "later actions count less"
    add_vtrace(rows, batch, module, VTraceSettings(0.99, lambda_))
    np.testing.assert_allclose(targets, rows.columns[col.VALUE_TARGETS], rtol=1e-4, atol=1e-4)


def test_what_a_loss_compares_with_is_computed_without_dropout_as_actions_are(built):
    config = experiment(minibatch_size=64).model(use="tiny:DropsOut")
    algorithm = built(config)
    module = algorithm.learner.module
    with torch.no_grad():  # logits far enough apart for dropout to matter
        module.pi.last.weight.mul_(300.0)
    algorithm.sync_weights()
    batch = algorithm.sample()
    rows = algorithm.learner.load(batch, (col.ACTIONS,))
    add_advantages(rows, batch, module, 0.99, 0.95)
    np.testing.assert_allclose(rows.columns[col.ACTION_LOGP], batch[col.ACTION_LOGP], atol=1e-4)
    first = rows.columns[col.VALUE_TARGETS]
    add_advantages(rows, batch, module, 0.99, 0.95)
    assert torch.equal(rows.columns[col.VALUE_TARGETS], first)
    traced = add_vtrace(rows, batch, module, VTraceSettings(0.99))
    assert traced["mean_ratio"] == pytest.approx(1.0, abs=1e-4)
    assert module.training  # it learns with dropout all the same


def test_an_algorithm_that_is_brought_back_to_its_beginning_has_its_first_kl_weight(
    built, tmp_path
):
    algorithm = built("PPO", training={"kl_coeff": 0.3, "kl_target": 0.5})
    algorithm.save(tmp_path / "untrained")
    first = train(algorithm, 3)
    algorithm.restore(tmp_path / "untrained")
    assert train(algorithm, 3) == first
