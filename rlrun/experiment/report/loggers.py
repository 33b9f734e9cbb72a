"""Sinks that write for other programs: CSV, TensorBoard, Weights & Biases, MLflow.

Owns what each of these programs receives: the numbers of each result over env steps, histograms,
images and videos if it supports them, and the settings. It must not know which numbers there are.
"""

import csv
import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlrun.checkpoint.files import replace_text
from rlrun.data.media import Histogram, Image, Media, Video
from rlrun.data.results import RETURN, flat, flat_numbers, plain_row
from rlrun.experiment.report.sinks import read_rows
from rlrun.experiment.run_folder import RunFolder, plain_settings

_MOST_PARAMETERS = 100  # limit of one request to MLflow's server


class CsvSink:
    """Writes ``metrics.csv``, a column for each key that is text or a number."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "metrics.csv"
        # Rows of earlier sessions, up to the checkpoint that a run is resumed from.
        self._rows = list(map(flat, read_rows(RunFolder(run_dir).metrics, warn=False)))
        self._columns: dict[str, None] = {}
        self._is_whole = True
        self._write_all()

    def write(self, result: dict[str, Any]) -> None:
        """Append a line.

        The file is rewritten for a new column, and after an OSError that may have left half a line.
        """
        row = flat(plain_row(result))
        self._rows.append(row)
        whole, self._is_whole = self._is_whole, False
        if whole and row.keys() <= self._columns.keys():
            with self._path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writerow(row)
        else:
            self._write_all()
        self._is_whole = True

    def _write_all(self) -> None:
        self._columns = {key: None for row in self._rows for key in row}
        with self._path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)

    def close(self) -> None:
        """Do nothing, as every line is in the file already."""


class TensorBoardSink:
    """Writes numbers and media over env steps, the settings as text and as hparams."""

    def __init__(self, run_dir: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = RunFolder(run_dir)
        # Drops what an earlier session wrote after the checkpoint that the run is resumed from.
        last = deque(read_rows(folder.metrics, warn=False), maxlen=1)
        following = _step_of(last[0]) + 1 if last else 0
        self._writer = SummaryWriter(str(folder.tensorboard), purge_step=following)
        self._settings = _settings(folder)
        self._last: dict[str, float] = {}
        text = folder.config.read_text(encoding="utf-8")
        self._writer.add_text("config", f"```yaml\n{text}\n```")

    def write(self, result: dict[str, Any]) -> None:
        """Add one result's numbers, histograms, images and videos, without null and text."""
        self._last = flat_numbers(result)
        step = _step_of(result)
        for address, value in self._last.items():
            self._writer.add_scalar(address, value, step)
        for address, media in _media(result):
            if isinstance(media, Histogram) and media.values.size:
                self._writer.add_histogram(address, media.values, step)
            elif isinstance(media, Image):
                picture = np.atleast_3d(np.asarray(media.picture))
                self._writer.add_image(address, picture, step, dataformats="HWC")
            elif isinstance(media, Video):
                self._add_video(address, media, step)

    def _add_video(self, address: str, video: Video, step: int) -> None:
        """Add a GIF; the writer's `add_video` writes nothing with moviepy from 2.0 on."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = video.size
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=video.gif()
        )
        summary = Summary(value=[Summary.Value(tag=address, image=image)])
        events: Any = self._writer.file_writer
        events.add_summary(summary, step)

    def close(self) -> None:
        """Add the settings with the last mean returns, flush and close the event file."""
        means = {key: value for key, value in self._last.items() if RETURN in key}
        if means:
            metrics = {f"last/{key}": value for key, value in means.items()}
            self._writer.add_hparams(self._settings, metrics, run_name=".")
        self._writer.close()


class WandbSink:
    """Logs to Weights & Biases; a resumed run continues the same W&B run."""

    def __init__(
        self,
        run_dir: Path,
        project: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        tags: tuple[str, ...] = (),
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        import wandb

        self._wandb = wandb
        folder = RunFolder(run_dir)
        self._run = wandb.init(
            project=project or run_dir.absolute().parent.name,
            entity=entity,
            group=group,
            tags=list(tags),
            mode=mode,
            name=run_dir.absolute().name,
            dir=str(run_dir),
            id=_lasting_id(folder),
            resume="allow",
            config=_settings(folder),
        )
        # Over env steps, which go back when a run is resumed from a checkpoint.
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")

    def write(self, result: dict[str, Any]) -> None:
        """Log one result's numbers, histograms, images and videos."""
        row: dict[str, Any] = dict(flat_numbers(result))
        for address, media in _media(result):
            if isinstance(media, Histogram) and media.values.size:
                row[address] = self._wandb.Histogram(media.values)
            elif isinstance(media, Image):
                row[address] = self._wandb.Image(media.picture)
            elif isinstance(media, Video):
                row[address] = self._wandb.Video(BytesIO(media.gif()), format="gif")
        self._run.log(row)

    def close(self) -> None:
        """Upload what is left."""
        self._run.finish()


class MlflowSink:
    """Logs to MLflow; a resumed run continues the MLflow run with the id in ``mlflow.txt``."""

    def __init__(
        self, run_dir: Path, experiment: str | None = None, tracking_uri: str | None = None
    ) -> None:
        import mlflow

        self._mlflow = mlflow
        if tracking_uri is not None:
            mlflow.set_tracking_uri(tracking_uri)
        mlflow.set_experiment(experiment or run_dir.absolute().parent.name)
        known = run_dir / "mlflow.txt"
        if known.exists():
            mlflow.start_run(run_id=known.read_text(encoding="utf-8").strip())
            return  # MLflow refuses a parameter with a second value
        run = mlflow.start_run(run_name=run_dir.absolute().name)
        replace_text(known, f"{run.info.run_id}\n")
        settings = list(_settings(RunFolder(run_dir)).items())
        for first in range(0, len(settings), _MOST_PARAMETERS):
            mlflow.log_params(dict(settings[first : first + _MOST_PARAMETERS]))

    def write(self, result: dict[str, Any]) -> None:
        """Log one result's numbers and images."""
        step = _step_of(result)
        self._mlflow.log_metrics(flat_numbers(result), step=step)
        for address, media in _media(result):
            if isinstance(media, Image):
                self._mlflow.log_image(media.picture, key=address, step=step)

    def close(self) -> None:
        """Mark the run as finished."""
        self._mlflow.end_run()


def _step_of(result: Mapping[str, Any]) -> int:
    """Env steps so far; iterations while none are counted, as in learning from a file."""
    return int(result["env_steps"] or result["training_iteration"])


def _media(result: Mapping[str, Any]) -> Iterator[tuple[str, Media]]:
    """The histograms, images and videos of a result, each with its address."""
    for address, value in flat(result).items():
        if isinstance(value, Media):
            yield address, value


def _settings(folder: RunFolder) -> dict[str, bool | int | float | str]:
    """All settings by address; values other than numbers and text as text."""
    return {
        key: value if isinstance(value, bool | int | float | str) else str(value)
        for key, value in flat(plain_settings(folder.config), ".").items()
    }


def _lasting_id(folder: RunFolder) -> str:
    """An id that a run keeps when it is resumed, and when its folder is moved."""
    meta = folder.read_meta()
    session = meta["sessions"][0]
    parts = (meta["created"], session["host"], session["pid"], folder.home.name)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
