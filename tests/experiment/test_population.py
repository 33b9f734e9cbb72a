"""Population-based training in a sweep: when its trials change, and to what."""

import math
from functools import partial
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_files import experiment

from rlrun.config.sweep import Dimension
from rlrun.experiment.sweep.trial import IDENTITY
from rlrun.experiment.sweep.tune import bounded, make_scheduler


def dimension(kind, *arguments):
    return Dimension("a", kind, arguments, ())


@given(st.floats(-1e6, 1e6))
def test_mutations_stay_in_the_space(value):
    for each, whole in (
        (dimension("uniform", 0.0, 1.0), False),
        (dimension("loguniform", 1e-5, 1e-2), False),
        (dimension("randint", 2, 6), True),
        (dimension("quniform", 8, 32, 8), False),
    ):
        found = bounded({"a": value, "b": 3}, [each])
        low, high = each.arguments[:2]
        assert low <= found["a"] <= high
        assert found["b"] == 3
        assert isinstance(found["a"], int) or not whole
        if each.kind == "quniform":
            assert math.isclose(found["a"] % 8, 0)


class FakePopulation:
    """A scheduler with trials that are paused after each result."""

    def __init__(self, size=6):
        sweep = experiment(
            "sweep: {space: {training.lr: {loguniform: [1e-4, 1e-2]}, "
            "training.gamma: {choice: [0.9, 1]}},"
            " trials: 6, metric: env_steps, scheduler: {use: pbt, perturbation_interval: 2}}"
        )
        self.scheduler, self.trials = make_scheduler(sweep), []
        for number in range(1, size + 1):
            config = {"training.lr": 1e-3, "training.gamma": 0.9, IDENTITY: {"trial": number}}
            trial = Mock(config=config, status="PAUSED", experiment_tag="")
            trial.is_finished.return_value = False
            trial.set_config.side_effect = partial(setattr, trial, "config")
            trial.run_metadata.checkpoint_manager.checkpoint_config.num_to_keep = None
            trial.temporary_state.saving_to = None
            self.trials.append(trial)
            self.scheduler.on_trial_add(None, trial)
        self.live, self.controller = {*self.trials}, Mock()
        self.controller.get_trials.return_value = self.trials
        self.controller.get_live_trials.return_value = self.live

    def report(self, *numbers, time=2):
        for number in numbers:
            result = {"training_iteration": time, "env_steps": float(number)}
            self.scheduler.on_trial_result(self.controller, self.trials[number - 1], result)

    def end(self, number, *, failed=False):
        trial = self.trials[number - 1]
        trial.is_finished.return_value = True
        if failed:  # Tune leaves it among the live ones
            self.scheduler.on_trial_error(self.controller, trial)
        else:
            self.live.remove(trial)

    def chosen(self):
        return self.scheduler.choose_trial_to_run(self.controller)

    def configs(self):
        return [trial.config for trial in self.trials]


def test_a_population_changes_in_the_same_way_in_any_order_of_the_results():
    one, other = FakePopulation(), FakePopulation()
    one.report(1, 2, 3, 4, 5, 6)
    other.report(6, 2, 4, 1, 3, 5)
    assert one.configs() == other.configs()
    assert len({config["training.lr"] for config in one.configs()}) > 1


@pytest.mark.parametrize("failed", [False, True])
def test_a_population_whose_last_trial_ends_instead_of_reporting_goes_on_without_it(failed):
    waiting, before = FakePopulation(), FakePopulation()
    before.end(6, failed=failed)
    before.report(1, 2, 3, 4, 5)
    waiting.report(1, 2, 3, 4, 5)
    waiting.trials[5].status = "RUNNING"
    assert waiting.chosen() is None
    waiting.end(6, failed=failed)
    assert waiting.chosen() in waiting.live
    assert waiting.configs() == before.configs()
    assert len({config["training.lr"] for config in before.configs()}) > 1


def test_a_population_that_is_resumed_beyond_its_first_changes_goes_on():
    found = FakePopulation()
    found.report(1, 2, 3, 4, 5, 6, time=7)
    configs = found.configs()
    assert found.chosen() in found.live
    found.report(1, 2, 3, 4, 5, 6, time=8)
    assert found.configs() == configs
    found.report(1, 2, 3, 4, 5, 6, time=9)
    assert found.configs() != configs
