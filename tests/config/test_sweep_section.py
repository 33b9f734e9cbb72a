"""The section `sweep`: every problem is an error with its place before anything runs."""

import pytest
from loading import errors

from rlrun.config.loader import load_experiment
from rlrun.config.sweep import dimensions

PPO = """algorithm: PPO
env: CartPole-v1
stop: {env_steps: 10_000}
training: {train_batch_size: 64, minibatch_size: 32}
sweep:
"""


def problems(write, text):
    return errors(write(PPO + text, minimal=False))


def test_nested_sections_and_addresses_mean_the_same(write):
    nested = "  space: {training: {lr: {grid: [1, 2]}, gamma: {uniform: [0, 1]}}}\n  trials: 2\n"
    dotted = "  space: {training.lr: {grid: [1, 2]}, training.gamma: {uniform: [0, 1]}}\n"
    left, right = (
        dimensions(load_experiment(write(PPO + text, minimal=False)).sweep.space)[0]
        for text in (nested, dotted + "  trials: 2\n")
    )
    assert [(d.address, d.kind, d.arguments) for d in left] == [
        ("training.lr", "grid", (1, 2)),
        ("training.gamma", "uniform", (0, 1)),
    ]
    assert [(d.address, d.kind) for d in left] == [(d.address, d.kind) for d in right]


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ("training.lrr: {grid: [1]}", "exp.yaml:6:11: sweep.space.training.lrr: unknown key in"),
        ("training.lrr: {grid: [1]}", "did you mean lr?"),
        ("train.lr: {grid: [1]}", "did you mean"),
        ("training.gamma: {uniform: [0.9, 1.1]}", "from 0 to 1, got 1.1"),
        ("training.num_epochs: {uniform: [1, 9]}", "randint and quniform draw whole numbers"),
        ("training.num_epochs: {randint: [0, 9]}", "of at least 1, got 0"),
        ("model.activation: {choice: [tanh, rely]}", "did you mean relu?"),
        ("env.gravity: {grid: [1]}", "CartPole-v1 takes no such argument"),
        ("training.lr: {loguniforn: [1, 2]}", "did you mean loguniform?"),
        ("training.lr: {loguniform: [0, 2]}", "above 0, got 0"),
        ("training.lr: {uniform: [2, 1]}", "2 is not below the upper bound 1"),
        ("training.lr: {uniform: [1]}", "expected numbers [low, high]"),
        ("training.lr: {quniform: [0.1, 1, 0.3]}", "must be multiples of the step 0.3"),
        ("training.lr: [1, 2]", "expected a distribution"),
        ("training.lr: {grid: [1, 1]}", "1 is listed twice"),
        ("training.lr: {grid: []}", "expected a list of values"),
        ("training.lr: {grid: [1], choice: [2]}", "expected one distribution for a setting"),
        ("training.lr: {grid: [1]}, training: {lr: {grid: [2]}}", "varied twice"),
        ("seed: {grid: [1, 2]}", "sweep.seeds"),
        ("sweep.trials: {grid: [1, 2]}", "does not vary itself"),
    ],
)
def test_a_wrong_space_is_an_error_with_its_place(write, space, says):
    found = problems(write, f"  space: {{{space}}}\n  trials: 1\n")
    assert any(says in line for line in found), found
    assert all(line.startswith("exp.yaml:6:") for line in found)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("metric: episode_return_meen", "sweep.metric: no result has the key"),
        ("metric: evaluation/episode_return_mean", "evaluation.interval: 10 works"),
        ("scheduler: ashaa", "did you mean asha?"),
        ("metric: null\n  scheduler: asha", "asha compares trials by a metric"),
        ("metric: null\n  search: optuna", "Optuna compares points by a metric"),
        ("scheduler: {use: asha, grace_periode: 3}", "did you mean grace_period?"),
        ("scheduler: {use: pbt, metric: x}", "is set by the sweep section itself"),
        ("search: optuna", "takes no grid"),
        ("seeds: [1, 1]", "a seed is listed twice"),
        ("seeds: []", "at least one seed"),
        ("scheduler: pbt", "only training.* can change"),
        ("scheduler: hyperband\n  concurrent: 2", "hyperband pauses trials"),
        ("scheduler: pbt\n  concurrent: 2", "pbt needs the whole population at once"),
        ("trials: 3", "trials: 3 would repeat equal runs; use seeds: 3 for different seeds"),
        ("search: optuna\n  scheduler: hyperband", "hyperband needs all points at the start"),
    ],
)
def test_a_search_that_cannot_work_is_an_error(write, text, says):
    found = problems(write, f"  space: {{model.hidden: {{grid: [[8], [16]]}}}}\n  {text}\n")
    assert any(says in line for line in found), found


def test_true_and_1_are_different_values(write):
    space = {"connectors.clip_rewards": {"grid": [True, 1]}}
    found = load_experiment(write(PPO + f"  space: {space}\n", minimal=False)).sweep.space
    assert dimensions(found)[0][0].arguments == (True, 1)


def test_drawn_points_need_a_number(write):
    found = problems(write, "  space: {training.lr: {uniform: [0, 1]}}\n")
    assert found == [
        "exp.yaml:5:1: sweep.trials: missing; set the number of points to draw: trials: 16"
    ]


def test_optuna_does_not_vary_resources(write):
    text = "  space: {env_runners.num_env_runners: {choice: [1, 2]}}\n  trials: 2\n"
    (line,) = problems(write, text + "  search: optuna\n")
    assert "resources must be known" in line


def test_a_sweep_of_nothing_is_no_sweep(write):
    assert "sweep.space is empty" in problems(write, "  trials: 3\n")[0]


def test_errors_of_the_file_and_of_its_sweep_come_together(write):
    text = PPO.replace("minibatch_size: 32", "gama: 1") + "  space: {training.lrr: {grid: [1]}}\n"
    keys = [line.split(": ")[1] for line in errors(write(text, minimal=False))]
    assert keys == ["training.gama", "sweep.space.training.lrr"]


def test_a_sweep_is_checked_beside_an_algorithm_that_does_not_exist(write):
    """But for settings that only the algorithm would have: they are not known to be wrong."""
    settings = "training.lr: {uniform: [2, 1]}, training.clip_param: {grid: [1]}"
    text = f"  space: {{{settings}, model.hiden: {{grid: [1]}}}}\n"
    algorithm, *others = errors(write(PPO.replace("PPO", "PPOO") + text, minimal=False))
    assert "did you mean PPO?" in algorithm
    assert [line.split(": ")[1] for line in others] == [
        "sweep.space.training.lr.uniform",
        "sweep.space.model.hiden",
    ]


def test_the_command_line_reaches_the_sweep(write):
    file = write(PPO + "  space: {training.lr: {grid: [1, 2]}}\n", minimal=False)
    overrides = ["sweep.seeds=3", "sweep.scheduler.use=median"]
    assert load_experiment(file, overrides).sweep.seeds == 3
    assert load_experiment(file, ["sweep.seeds=[4, 5]"]).sweep.seeds == (4, 5)


@pytest.mark.parametrize(
    ("space", "word"),
    [
        ("{training.lr: {grid: [1, 2]}}", "sweep.space={training.lr: {uniform: [0.5, 0.9]}}"),
        ("{training: {lr: {grid: [1, 2]}}}", "sweep.space.training={lr: {uniform: [0.5, 0.9]}}"),
        ("{training: {lr: {grid: [1, 2]}}}", "sweep.space.training.lr={uniform: [0.5, 0.9]}"),
        ("{training: {lr: {grid: [1, 2]}}}", "sweep.space.training.lr.uniform=[0.5, 0.9]"),
        ("{training.lr: {grid: [1, 2]}}", "sweep.space.training.lr={uniform: [0.5, 0.9]}"),
        ("{training.lr: {grid: [1, 2]}}", "sweep.space.training.lr.uniform=[0.5, 0.9]"),
        ("{training.lr: {grid: [1, 2]}}", "sweep.space={training: {lr: {uniform: [0.5, 0.9]}}}"),
        ("{training: {lr: {grid: [1, 2]}}}", "sweep.space={training.lr: {uniform: [0.5, 0.9]}}"),
    ],
)
def test_a_distribution_takes_the_place_of_another_and_leaves_the_others(write, space, word):
    gamma = "training.gamma: {choice: [0.9, 0.99]}"
    file = write(PPO + f"  space: {space[:-1]}, {gamma}}}\n  trials: 2\n", minimal=False)
    varied, _ = dimensions(load_experiment(file, [word]).sweep.space)
    found = {each.address: (each.kind, each.arguments) for each in varied}
    assert found["training.lr"] == ("uniform", (0.5, 0.9))
    assert found["training.gamma"] == ("choice", (0.9, 0.99))


@pytest.mark.parametrize("form", ["{training.gamma: %s}", "{training: {gamma: %s}}"])
def test_a_distribution_takes_the_place_of_that_of_the_base(write, form):
    write(PPO + "  space: {training.gamma: {grid: [0.9]}}\n", "b.yaml", minimal=False)
    space = form % "{uniform: [0.9, 0.99]}"
    text = f"base: b.yaml\nsweep: {{trials: 2, space: {space}}}"
    (varied,), _ = dimensions(load_experiment(write(text, minimal=False)).sweep.space)
    assert (varied.address, varied.kind) == ("training.gamma", "uniform")


def test_an_override_of_what_code_is_varied_leaves_its_arguments(write):
    space = "  space: {env: {use: {grid: [A, B]}, max_episode_steps: {grid: [5]}}}\n"
    words = ["sweep.space.env.use={grid: [CartPole-v0, CartPole-v1]}"]
    varied, _ = dimensions(load_experiment(write(PPO + space, minimal=False), words).sweep.space)
    assert [each.address for each in varied] == ["env.use", "env.max_episode_steps"]


def test_a_setting_that_is_varied_twice_is_an_error_beside_an_override_too(write):
    space = "  space: {training.lr: {grid: [1]}, training: {lr: {grid: [2]}}}\n"
    word = "sweep.space.training.gamma={grid: [0.9]}"
    (line,) = errors(write(PPO + space, minimal=False), [word])
    assert "training.lr is varied twice" in line
