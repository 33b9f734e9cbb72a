# ruff: noqa: E501 - one line for each case
"""Schedules, their values and bounds, and the bounds of other numbers."""

import math

import pytest
from loading import errors

from rlrun.config import memory_checks
from rlrun.config.dump import dump_yaml
from rlrun.config.loader import load_experiment
from rlrun.config.schedules import value_at

LINE = "[[0, 1.0], [100, 0.5], [200, 0.0]]"
SQUARE = "{kind: polynomial, start: 1, end: 0.2, env_steps: 2e2, power: 2}"
STRAIGHT = "{kind: polynomial, start: 0, end: 1, env_steps: 200}"
COSINE = "{kind: cosine, start: 1, end: 0.2, env_steps: 200}"
HALVED = "{kind: exponential, start: 1, end: 0.25, env_steps: 200}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3e-4", [3e-4, 3e-4, 3e-4, 3e-4]),
        (LINE, [1.0, 0.75, 0.5, 0.0]),
        (SQUARE, [1.0, 0.65, 0.4, 0.2]),
        (STRAIGHT, [0.0, 0.25, 0.5, 1.0]),
        (HALVED, [1.0, math.sqrt(0.5), 0.5, 0.25]),
        (COSINE, [1.0, 0.6 + 0.4 * math.sqrt(0.5), 0.6, 0.2]),
    ],
)
def test_a_schedule_has_its_value_at_each_step_and_keeps_the_last(write, text, expected):
    experiment = load_experiment(write(f"training: {{lr: {text}}}"))
    again = load_experiment(write(dump_yaml(experiment), "again.yaml", minimal=False))
    for lr in (experiment.training.lr, again.training.lr):
        assert [value_at(lr, steps) for steps in (0, 50, 100, 200)] == pytest.approx(expected)
        assert value_at(lr, 10**12) == expected[-1]


@pytest.mark.parametrize(
    ("algorithm", "text", "message"),
    [
        ("PPO", "training: {lr: -3e-4}", "training.lr: expected a number or schedule from 0 to 10, got -0.0003"),
        ("PPO", "training: {lr: 1e38}", "training.lr: expected a number or schedule from 0 to 10, got"),
        ("PPO", "training: {lr: [[0, 1e-3], [100, -1]]}", "training.lr[1][1]: expected a number from 0 to 10, got -1"),
        ("PPO", "training: {lr: [[0, 1], [.inf, 1]]}", "training.lr[1][0]: expected a whole number of env steps, at most 1,000,000,000,000,000, got inf"),
        ("PPO", "training: {lr: {kind: exponentil}}", "training.lr.kind: expected kind: cosine or kind: exponential or kind: polynomial, got the text 'exponentil' - did you mean exponential?"),
        ("PPO", "training: {lr: {start: 1}}", "training.lr: expected kind: cosine or kind: exponential or kind: polynomial, got null"),
        ("PPO", "training: {lr: {kind: cosine, start: 1, end: 1, env_steps: 9, power: 2}}", "training.lr.power: unknown key of cosine decay"),
        ("PPO", "training: {lr: {kind: polynomial, start: 1, end: 0}}", "training.lr: polynomial decay needs env_steps"),
        ("PPO", "training: {lr: {kind: exponential, start: 1, end: 0, env_steps: 9}}", "training.lr.end: exponential decay stays above 0, got 0"),
        ("PPO", "training: {lr: {kind: exponential, start: 1, end: 1, env_steps: 9, power: 2}}", "training.lr.power: unknown key of exponential decay"),
        ("PPO", "training: {lr: {kind: polynomial, start: 1, end: 1, env_steps: 0}}", "training.lr.env_steps: expected at least 1 env step, got 0"),
        ("PPO", "training: {lr: {kind: polynomial, start: 99, end: 1, env_steps: 1}}", "training.lr.start: expected a number from 0 to 10, got 99"),
        ("PPO", "training: {entropy_coeff: -0.1}", "training.entropy_coeff: expected a number or schedule of at least 0, got"),
        ("PPO", "training: {clip_param: -0.2}", "training.clip_param: expected a number or schedule of at least 0, got"),
        ("PPO", "training: {clip_param: 1e308}", "training.clip_param: expected at most 1e+09, got 1e+308"),
        ("PPO", "training: {num_epochs: 1e308}", "training.num_epochs: expected at most 1,000,000,000, got 1000000"),
        ("SAC", "training: {critic_lr: -1}", "training.critic_lr: expected a number or schedule from 0 to 10 or null, got -1"),
        ("SAC", "training: {tau: 2}", "training.tau: expected a number above 0 and of at most 1"),
        ("DQN", "exploration: {epsilon: 1.7}", "exploration.epsilon: expected a number or schedule from 0 to 1, got"),
        ("DQN", "replay: {beta: 9}", "replay.beta: expected a number or schedule from 0 to 1, got"),
        ("DQN", "replay: {capacity: 1e9}", "replay.capacity: 1,000,000,000 of them take at least 48.0 GB, but this machine has 4.0 GB of memory"),
        ("DQN", "training: {train_batch_size: 1e9}", "training.train_batch_size: 1,000,000,000 of them take at least 16.0 GB"),
        ("PPO", "model: {hidden: [1e6, 1e6]}", "model.hidden: 1,000,001,000,000 weights take at least 16,000.0 GB"),
        ("PPO", "model: {value_hidden: [1e6, 1e6]}", "model.value_hidden: 1,000,001,000,000 weights"),
        ("PPO", "model: {hidden: [1e30]}", "model.hidden[0]: expected at most 1,000,000,000, got 1000000"),
        ("PPO", "model: {use_lstm: true, lstm_cell_size: 1e6}", "model.lstm_cell_size: 3,000,192,000,000 weights take at least"),
        ("PPO", "connectors: {clip_rewards: -1}", "connectors.clip_rewards: expected true or false, a number above 0 or null, got -1"),
    ],
)  # fmt: skip
def test_a_number_out_of_bounds_is_refused_with_its_place(
    write, monkeypatch, algorithm, text, message
):
    monkeypatch.setattr(memory_checks, "memory_bytes", lambda: 4 * 10**9)
    file = write(f"algorithm: {algorithm}\nenv: CartPole-v1\n{text}", minimal=False)
    (line,) = errors(file)
    assert line.startswith("exp.yaml:3:")
    assert message in line
