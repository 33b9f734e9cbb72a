"""Sinks for other programs: what each is given, and the packages that they need.

wandb and mlflow are doubles that record the calls; the real services are not reached.
"""

import csv
import errno
import json
import sys
from importlib.machinery import ModuleSpec
from io import BytesIO
from types import ModuleType
from unittest.mock import MagicMock

import numpy as np
import PIL.Image
import PIL.ImageSequence
import pytest
from matplotlib.figure import Figure

from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError
from rlrun.config.schema import UseSpec
from rlrun.data.media import Histogram, Image, Video
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


def test_csv_is_whole_again_after_a_full_disk(folder, monkeypatch):
    rows = [{"training_iteration": i, "env_steps": 100 * i} for i in (1, 2, 3)]
    path = folder.path / "metrics.csv"

    def write_half(writer, row):
        with path.open("a") as file:
            file.write("2,20")
        raise OSError(errno.ENOSPC, "No space left on device")

    jsonl, sink = make_sinks([UseSpec(use="csv")], folder)
    jsonl.close()
    sink.write(rows[0])
    with monkeypatch.context() as patch:
        patch.setattr(csv.DictWriter, "writerow", write_half)
        with pytest.raises(OSError, match="No space left"):
            sink.write(rows[1])
    sink.write(rows[2])
    with path.open(newline="") as file:
        found = [{key: int(value) for key, value in row.items()} for row in csv.DictReader(file)]
    assert found == rows


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


def test_tensorboard_counts_iterations_where_no_env_steps_are_counted(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    report(folder, [row | {"env_steps": 0} for row in ROWS], "tensorboard")
    events = accumulator.EventAccumulator(str(folder.tensorboard))
    events.Reload()
    assert [event.step for event in events.Scalars("episode_return_mean")] == [1, 2]


def test_tensorboard_has_each_iteration_once_where_a_run_is_resumed_before_the_last(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    report(folder, ROWS, "tensorboard")
    folder.metrics.write_text(folder.metrics.read_text().splitlines(keepends=True)[0])
    report(folder, [ROWS[1] | {"episode_return_mean": 8.0}], "tensorboard")
    events = accumulator.EventAccumulator(str(folder.tensorboard))
    events.Reload()
    scalars = events.Scalars("episode_return_mean")
    assert [(event.step, event.value) for event in scalars] == [(100, 5.0), (200, 8.0)]


def test_settings_are_handed_on_where_the_stop_is_a_nested_result(folder, double):
    text = folder.config.read_text()
    folder.config.write_text(f"{text}stop: {{evaluation/episode_return_mean: 450}}\n")
    calls = double("wandb")
    report(folder, ROWS, "wandb")
    settings = calls.init.call_args.kwargs["config"]
    assert settings["stop.evaluation.episode_return_mean"] == 450


@pytest.fixture
def row():
    """A result with one of everything that sinks may take."""
    frames = np.zeros((5, 12, 16, 3), np.uint8)
    for t, frame in enumerate(frames):
        frame[:, 3 * t : 3 * t + 3] = [255, 0, 0]
    figure = Figure(figsize=(2, 1), dpi=50)
    figure.subplots().plot([0, 1], [1, 0])
    own = {"lengths": Histogram([1, 2, 2, np.nan]), "curve": Image(figure)}
    return {**ROWS[0], "own": own, "film": Video(frames, fps=10), "none": Histogram([])}


def test_tensorboard_shows_histograms_images_and_videos(folder, row):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    report(folder, [row], "tensorboard")
    events = accumulator.EventAccumulator(str(folder.tensorboard))
    events.Reload()
    assert events.Tags()["histograms"] == ["own/lengths"]
    (histogram,) = events.Histograms("own/lengths")
    assert (histogram.step, histogram.histogram_value.num) == (100, 3)
    assert (histogram.histogram_value.min, histogram.histogram_value.max) == (1, 2)
    (curve,), (film,) = events.Images("own/curve"), events.Images("film")
    assert (curve.step, curve.width, curve.height) == (100, 100, 50)
    picture = np.asarray(PIL.Image.open(BytesIO(curve.encoded_image_string)))
    assert len(np.unique(picture)) > 10
    with PIL.Image.open(BytesIO(film.encoded_image_string)) as gif:
        shown = [np.asarray(frame.convert("RGB")) for frame in PIL.ImageSequence.Iterator(gif)]
        assert (gif.format, gif.info["duration"]) == ("GIF", 100)
    assert [np.flatnonzero(frame[0, :, 0])[0] for frame in shown] == [0, 3, 6, 9, 12]


def test_what_is_no_number_stays_out_of_jsonl_and_csv(folder, row):
    report(folder, [row], "csv")
    known = [*ROWS[0], "own"]
    assert [*json.loads(folder.metrics.read_text())] == known
    assert (folder.path / "metrics.csv").read_text().splitlines()[0] == ",".join(known[:-1])


def test_wandb_and_mlflow_get_what_they_take(folder, double, row):
    wandb, mlflow = double("wandb"), double("mlflow")
    mlflow.start_run.return_value.info.run_id = "77"
    report(folder, [row], "wandb")
    report(folder, [row], "mlflow")
    found = wandb.init.return_value.log.call_args.args[0]
    assert found["own/lengths"] is wandb.Histogram.return_value
    assert wandb.Histogram.call_args.args[0].tolist() == [1.0, 2.0, 2.0]
    assert found["own/curve"] is wandb.Image.return_value
    assert found["film"] is wandb.Video.return_value
    assert wandb.Video.call_args.args[0].getvalue().startswith(b"GIF")
    assert "none" not in found
    (image,) = mlflow.log_image.call_args_list
    assert image.kwargs == {"key": "own/curve", "step": 100}
    assert image.args[0].size == (100, 50)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Histogram(["a"]), "a histogram is of numbers"),
        (lambda: Image(np.zeros((3, 8, 8), np.uint8)), r"not uint8 \[3, 8, 8\]"),
        (lambda: Image(np.zeros((8, 8))), r"not float64 \[8, 8\]"),
        (lambda: Video([]), "at least one frame"),
    ],
)
def test_what_is_no_picture_is_said(make, says):
    with pytest.raises((TypeError, ValueError), match=says):
        make()


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
