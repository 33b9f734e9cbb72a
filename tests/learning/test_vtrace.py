"""V-trace against a transcription of the paper's sums, and the ends of its trajectories."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun import EnvRunner, RunnerSpec
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, LearnersConfig, TrainingConfig
from rlrun.data import columns as col
from rlrun.learning.learner import Learner
from rlrun.learning.vtrace import VTraceSettings, add_vtrace, vtrace, vtrace_of_rows
from rlrun.policies.catalog import build_module
from rlrun.sampling.runner_messages import SampleRequest


def slow_vtrace(columns, gamma, lambda_, rho_bar, pg_rho_bar):
    """Equation 1 as its sum over products, one row after the other; an end cuts the sum."""
    log_ratios, rewards, values, next_values, terminateds, truncateds = columns
    steps, num_envs = rewards.shape
    ratios = np.exp(log_ratios.astype(float))
    targets, advantages = np.zeros((steps, num_envs)), np.zeros((steps, num_envs))

    def bootstrap(t, b, value):
        return 0.0 if terminateds[t, b] else value

    for b in range(num_envs):
        for s in range(steps):
            total, product = values[s, b], 1.0
            for t in range(s, steps):
                rho = min(rho_bar, ratios[t, b])
                after = bootstrap(t, b, next_values[t, b])
                delta = rho * (rewards[t, b] + gamma * after - values[t, b])
                total += gamma ** (t - s) * product * delta
                if terminateds[t, b] or truncateds[t, b]:
                    break
                product *= lambda_ * min(1.0, ratios[t, b])
            targets[s, b] = total
        for s in range(steps):
            ended = terminateds[s, b] or truncateds[s, b] or s == steps - 1
            after = next_values[s, b] if ended else targets[s + 1, b]
            one_step = rewards[s, b] + gamma * bootstrap(s, b, after) - values[s, b]
            advantages[s, b] = min(pg_rho_bar, ratios[s, b]) * one_step
    return targets, advantages


def random_columns(seed, steps, num_envs, spread=1.0):
    rng = np.random.default_rng(seed)
    shape = (steps, num_envs)
    values = rng.normal(size=(steps + 1, num_envs)).astype(np.float32)
    terminateds, truncateds = rng.random(shape) < 0.15, rng.random(shape) < 0.15
    next_values = values[1:].copy()
    ends = terminateds | truncateds
    # Behind an end stands the final observation, not the first of the next episode.
    next_values[ends] = rng.normal(size=int(ends.sum()))
    log_ratios = (spread * rng.normal(size=shape)).astype(np.float32)
    rewards = rng.normal(size=shape).astype(np.float32)
    return [log_ratios, rewards, values[:-1], next_values, terminateds, truncateds]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    num_envs=st.integers(1, 3),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
    clips=st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.5, 1.0, 3.0])),
)
def test_vtrace_is_the_papers_sum(seed, steps, num_envs, gamma, lambda_, clips):
    columns = random_columns(seed, steps, num_envs)
    expected = slow_vtrace(columns, gamma, lambda_, *clips)
    got = vtrace(*columns, settings=VTraceSettings(gamma, lambda_, *clips))
    for mine, slow in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, slow, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_without_clipping_ratios_count_as_they_are(seed):
    columns = random_columns(seed, 6, 2)
    got = vtrace(*columns, settings=VTraceSettings(0.9, 1.0, None, None))
    for mine, slow in zip(got, slow_vtrace(columns, 0.9, 1.0, np.inf, np.inf), strict=True):
        np.testing.assert_allclose(mine, slow, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_chunks_of_any_length_do_not_touch_each_other(seed, lengths):
    columns = [column[:, 0] for column in random_columns(seed, sum(lengths), 1)]
    got = vtrace_of_rows(*columns, np.array(lengths), settings=VTraceSettings(0.9))
    begin = 0
    for length in lengths:
        chunk = [column[begin : begin + length, None] for column in columns]
        for mine, alone in zip(got, vtrace(*chunk, settings=VTraceSettings(0.9)), strict=True):
            np.testing.assert_allclose(mine[begin : begin + length], alone[:, 0], rtol=1e-5)
        begin += length


def test_a_truncation_bootstraps_and_a_termination_does_not():
    zero, one = np.zeros((1, 1)), np.ones((1, 1))
    yes, no = np.ones((1, 1), bool), np.zeros((1, 1), bool)
    truncated = vtrace(zero, one, zero, 10 * one, no, yes, settings=VTraceSettings(0.5))
    assert [x.item() for x in truncated] == [6.0, 6.0]
    for truncateds, value in product((no, yes), (10.0, np.inf, np.nan)):
        final = value * one
        ended = vtrace(zero, one, zero, final, yes, truncateds, settings=VTraceSettings(0.5))
        assert [x.item() for x in ended] == [1.0, 1.0]


def test_numbers_without_gradient_from_the_sampling_time_log_probabilities():
    runner = EnvRunner(
        RunnerSpec(EnvSpec(use="CartPole-v1"), EnvRunnersConfig(num_envs_per_env_runner=3))
    )
    torch.manual_seed(0)
    space = runner.policy.observation_space
    module = build_module(space, runner.policy.action_space, runner.spec.model)
    learner = Learner(module, TrainingConfig(), LearnersConfig(device="cpu"))
    acted_with = learner.get_weights()
    runner.policy.set_weights(acted_with)
    batch = runner.sample()
    rows = learner.load(batch, (col.ACTIONS,))
    same = add_vtrace(rows, batch, module, VTraceSettings(0.9))
    assert same["mean_ratio"] == pytest.approx(1.0, abs=1e-4)
    assert not rows.columns[col.ADVANTAGES].requires_grad
    assert not rows.columns[col.VALUE_TARGETS].requires_grad
    changed = acted_with + 0.3 * np.random.default_rng(0).normal(size=acted_with.shape)
    learner.parameters.load(changed.astype(np.float32))
    other = add_vtrace(rows, batch, module, VTraceSettings(0.9))
    with torch.no_grad():
        inputs = module.forward_train({col.OBS: torch.from_numpy(batch[col.OBS].copy())})
        logp = module.distribution.logp(
            inputs[col.ACTION_DIST_INPUTS], rows.columns[col.ACTIONS]
        ).numpy()
    expected = np.exp(logp - batch[col.ACTION_LOGP]).mean()
    assert other["mean_ratio"] == pytest.approx(float(expected), rel=1e-5)
    assert abs(expected - 1.0) > 1e-3


def test_of_a_target_policy_come_the_ratios_and_of_the_learners_network_the_values():
    runner = EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1"), EnvRunnersConfig()))
    torch.manual_seed(0)
    spaces = runner.policy.observation_space, runner.policy.action_space
    module, target = (build_module(*spaces, runner.spec.model) for _ in range(2))
    learner = Learner(module, TrainingConfig(), LearnersConfig(device="cpu"))
    with torch.no_grad():
        target.pi.last.weight.mul_(100.0)
    batch = runner.sample_fragment(SampleRequest(0, 40), learner.get_weights()).batch
    rows, settings = learner.load(batch, (col.ACTIONS,)), VTraceSettings(0.9)
    add_vtrace(rows, batch, module, settings, target=target)
    seen = [torch.from_numpy(batch[name].copy()) for name in (col.OBS, col.NEXT_OBS)]
    with torch.no_grad():
        inputs = target.forward_train({col.OBS: seen[0]})[col.ACTION_DIST_INPUTS]
        logp = target.distribution.logp(inputs, rows.columns[col.ACTIONS]).numpy()
        values = [module.compute_values({col.OBS: obs}).numpy() for obs in seen]
    log_ratios = logp - batch[col.ACTION_LOGP]
    assert np.abs(log_ratios).max() > 0.1
    names = (col.REWARDS, col.TERMINATEDS, col.TRUNCATEDS)
    rewards, terminateds, truncateds = (batch[name] for name in names)
    expected = vtrace_of_rows(
        *(log_ratios, rewards, *values, terminateds, truncateds, np.array([40])), settings=settings
    )
    for name, slow in zip((col.VALUE_TARGETS, col.ADVANTAGES), expected, strict=True):
        np.testing.assert_allclose(rows.columns[name], slow, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(rows.columns[col.ACTION_LOGP], logp, rtol=1e-5, atol=1e-5)
