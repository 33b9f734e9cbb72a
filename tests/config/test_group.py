"""Several values on the command line, and the sweep that they stand for."""

import pytest
from loading import errors

from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError
from rlrun.config.sweep import group_overrides, several_values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3,1e-4", [1e-3, 1e-4]),
        ("1, null, auto", [1, None, "auto"]),
        ("[64, 64],[256]", [[64, 64], [256]]),
        ("{use: a:B, n: 1},c:D", [{"use": "a:B", "n": 1}, "c:D"]),
        ("[64, 64]", []),
        ("{env_steps: 1, time_s: 2}", []),
        ('"a,b"', []),
        ("1,", []),
        ("[1,2", []),
        ("3", []),
    ],
)
def test_commas_outside_of_brackets_and_quotes_separate_values(text, values):
    assert several_values(text) == values


def test_a_group_is_a_grid_that_takes_the_place_of_the_files_sweep(write):
    path = write("sweep: {space: {training.gamma: {uniform: [0.9, 1]}}, trials: 3}\n")
    words = ["training.lr=1e-3,1e-4", "sweep.concurrent=1", "seed=7"]
    experiment = load_experiment(path, group_overrides(words, 2))
    assert (experiment.training.lr, experiment.seed) == (1e-3, 7)
    assert experiment.sweep.space == {"training.lr": {"grid": [1e-3, 1e-4]}}
    assert (experiment.sweep.seeds, experiment.sweep.concurrent) == (2, 1)
    assert experiment.sweep.trials is None


@pytest.mark.parametrize(
    ("words", "seeds", "found"),
    [(["seed=3,5"], None, (3, 5)), ([], (11, 12), (11, 12)), ([], 4, 4)],
)
def test_seeds_need_no_space(write, words, seeds, found):
    experiment = load_experiment(write(), group_overrides(words, seeds))
    assert (experiment.sweep.seeds, experiment.sweep.space) == (found, {})


def test_single_values_are_no_group():
    assert group_overrides(["training.lr=1e-3", "model.hidden=[1, 2]"]) is None


@pytest.mark.parametrize(
    ("words", "seeds", "says"),
    [
        (["training.lr=1,2", "training.lr=3"], None, "training.lr: given twice"),
        (["seed=1,2"], 3, "seed: several seeds are given twice"),
        (["sweep.seeds=4"], 3, "seed: several seeds are given twice"),
        (["seed=1,2", "sweep.seeds=[1]"], None, "seed: several seeds are given twice"),
    ],
)
def test_a_contradiction_is_an_error(words, seeds, says):
    with pytest.raises(ConfigError, match=says):
        group_overrides(words, seeds)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["training.lr=1e-3,x"], "sweep.space.training.lr: expected a number or schedule"),
        (["seed=1,1"], "sweep.seeds: a seed is listed twice"),
        (["seed=1,2", "sweep.trials=3"], "sweep.trials: sweep.space is empty"),
        (["seed=1,2", "sweep.metric=evaluation/x"], "sweep.metric: "),
    ],
)
def test_a_wrong_group_is_an_error_before_anything_starts(write, words, says):
    assert any(says in line for line in errors(write(), group_overrides(words)))
