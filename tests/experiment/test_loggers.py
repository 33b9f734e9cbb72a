"""Sinks for other programs: what each is given, and the packages that they need.

wandb and mlflow are doubles that record the calls; the real services are not reached.
"""

import csv
import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

import pytest

from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError
from rlrun.config.schema import UseSpec
from rlrun.experiment.report.sinks import make_sinks
from rlrun.experiment.run_folder import RunFolder

BASE = ["algorithm=PPO", "env=CartPole-v1"]
ROWS = [
    {"training_iteration": 1, "env_steps": 100, "episode_return_mean": 5.0, "note": None},
    {"training_iteration": 2, "env_steps": 200, "episode_return_mean": 7.0, "own": {"late": 3}},
]


@pytest.fixture
def folder(tmp_path):
    """A run folder whose session has begun."""
    folder = RunFolder(tmp_path / "exp" / "run")
    folder.path.mkdir(parents=True)
    folder.config.write_text("algorithm: PPO\nenv: CartPole-v1\ntraining: {lr: 0.5}\n")
    folder.begin_session(resumed_from=None, overrides=())
    return folder


@pytest.fixture
def double(monkeypatch):
    """Put a package in place that records its calls."""

    def install(name):
        calls = MagicMock()
        package = ModuleType(name)
        package.__spec__ = ModuleSpec(name, None)
        package.__getattr__ = lambda attribute: getattr(calls, attribute)
        monkeypatch.setitem(sys.modules, name, package)
        return calls

    return install


def report(folder, rows, use, **kwargs):
    sinks = make_sinks([UseSpec(use=use, kwargs=kwargs)], folder)
    for sink in sinks:
        for row in rows:
            sink.write(row)
        sink.close()


def test_csv_has_a_column_for_each_key_and_goes_on_where_a_run_is_resumed(folder):
    report(folder, ROWS[:1], "csv")
    report(folder, ROWS[1:], "csv")
    with (folder.path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["episode_return_mean"] for row in rows] == ["5.0", "7.0"]
    assert [row["own/late"] for row in rows] == ["", "3"]


def test_results_are_jsonl_whatever_else_they_are(folder):
    report(folder, ROWS, "csv")
    lines = folder.metrics.read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in lines] == [100, 200]


def test_tensorboard_has_scalars_the_file_and_the_settings(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    report(folder, ROWS, "tensorboard")
    events = accumulator.EventAccumulator(str(folder.tensorboard))
    events.Reload()
    scalars = events.Scalars("episode_return_mean")
    assert [(event.step, event.value) for event in scalars] == [(100, 5.0), (200, 7.0)]
    (text,) = events.Tensors("config/text_summary")
    assert b"lr: 0.5" in text.tensor_proto.string_val[0]
    assert events.Scalars("last/episode_return_mean")[0].value == 7.0
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_wandb_gets_settings_and_numbers_and_a_resumed_run_goes_on_there(folder, double):
    wandb = double("wandb")
    report(folder, ROWS[:1], "wandb", project="mine", mode="offline")
    folder.begin_session(resumed_from=1, overrides=())
    report(folder, ROWS[1:], "wandb", project="mine", mode="offline")
    first, second = (call.kwargs for call in wandb.init.call_args_list)
    assert first == second
    assert (first["project"], first["mode"], first["name"]) == ("mine", "offline", "run")
    assert (first["resume"], len(first["id"])) == ("allow", 16)
    assert first["config"]["training.lr"] == 0.5
    run = wandb.init.return_value
    run.define_metric.assert_any_call("*", step_metric="env_steps")
    assert [call.args[0]["env_steps"] for call in run.log.call_args_list] == [100, 200]
    assert run.log.call_args.args[0]["own/late"] == 3
    assert run.finish.call_count == 2


def test_mlflow_gets_settings_once_and_numbers_over_env_steps(folder, double):
    mlflow = double("mlflow")
    mlflow.start_run.return_value.info.run_id = "77"
    report(folder, ROWS[:1], "mlflow", tracking_uri="http://host")
    report(folder, ROWS[1:], "mlflow", tracking_uri="http://host")
    mlflow.set_tracking_uri.assert_called_with("http://host")
    mlflow.set_experiment.assert_called_with("exp")
    assert [call.kwargs for call in mlflow.start_run.call_args_list] == [
        {"run_name": "run"},
        {"run_id": "77"},
    ]
    (settings,) = (call.args[0] for call in mlflow.log_params.call_args_list)
    assert settings["training.lr"] == 0.5
    assert [call.kwargs["step"] for call in mlflow.log_metrics.call_args_list] == [100, 200]
    assert mlflow.end_run.call_count == 2


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_found_before_the_start(name, monkeypatch):
    monkeypatch.setattr("rlrun.config.registry.is_installed", lambda module: module != name)
    with pytest.raises(ConfigError, match=rf"report.sinks\[0\]: {name} .*pip install {name}"):
        load_experiment(None, [*BASE, f"report.sinks=[{name}]"])


@pytest.mark.parametrize(
    ("sink", "says"),
    [
        ("{use: wandb, projet: a}", "did you mean project"),
        ("{use: jsonl, path: a}", "jsonl takes no argument path"),
        ("tensorbord", "did you mean tensorboard"),
    ],
)
def test_a_wrong_argument_of_a_sink_is_found(sink, says, double):
    double("wandb")
    with pytest.raises(ConfigError, match=says):
        load_experiment(None, [*BASE, f"report.sinks=[{sink}]"])
