"""What is left of a sweep: the best setting as a file, and the last lines on the console.

Owns the words. It must not know how a sweep gets there.
"""

from dataclasses import dataclass
from pathlib import Path

from rlrun.checkpoint.files import replace_text
from rlrun.experiment.outcome import End
from rlrun.experiment.stopping import number
from rlrun.experiment.sweep.folder import SweepFolder
from rlrun.experiment.sweep.points import settings_text
from rlrun.experiment.sweep.trials import Trial, TrialBook


@dataclass(frozen=True)
class SweepOutcome:
    """How a sweep ended."""

    end: End
    folder: Path
    trials: tuple[Trial, ...]
    """In the order of their numbers."""
    best: Trial | None
    """Of the best point; None where nothing can be compared yet."""
    plot: Path | None = None
    """Where the settings are drawn against the score; None without matplotlib."""

    @property
    def all_failed(self) -> bool:
        """Whether nothing came of it."""
        return bool(self.trials) and all(trial.status == "failed" for trial in self.trials)


def write_best(folder: SweepFolder, book: TrialBook) -> Trial | None:
    """Write the best trial's experiment as best.yaml; None if there is none yet."""
    best = book.best()
    if best is None or best.score is None:
        return None
    source = folder.path / best.folder / "config.yaml"
    if not source.is_file():
        return None
    point = book.score_of_point(best.point)
    seeds = len(book.of_point(best.point))
    mean = f", mean over {seeds} seeds {number(point)}" if seeds > 1 and point is not None else ""
    head = (
        f"# The best of {len(book.trials)} trials: number {best.trial}, "
        f"{book.metric} {number(best.score)}{mean}\n"
        f"# {settings_text(best.settings)}\n"
        f"# rlrun train {folder.best}\n"
    )
    replace_text(folder.best, head + source.read_text(encoding="utf-8"))
    return best


def sweep_lines(outcome: SweepOutcome, book: TrialBook) -> list[str]:
    """The end of a sweep in a few lines: what was reached, where it is, what can be done next."""
    counts = ", ".join(f"{count} {status}" for status, count in book.counts().items())
    headline = "Finished" if outcome.end == "finished" else "Interrupted"
    lines = [f"{headline}: {len(book.trials)} trials, {counts}"]
    failed = [trial for trial in book.trials if trial.status == "failed"]
    lines += [
        f"  failed      trial {trial.trial}: {trial.reason}; see {outcome.folder / str(trial.log)}"
        for trial in failed
    ]
    best, home = outcome.best, outcome.folder
    if best is not None and best.score is not None:
        score = f"{book.metric} {number(round(best.score, 4))}"
        lines.append(f"  best        trial {best.trial}: {score}, {settings_text(best.settings)}")
    lines.append(f"  sweep       {home}")
    if outcome.plot is not None:
        lines.append(f"  plot        {outcome.plot}")
    if best is not None:
        lines.append(f"  play it     rlrun rollout {home / best.folder}")
        lines.append(f"  train it    rlrun train {home / 'best.yaml'}")
    if outcome.end == "interrupted" or failed:
        lines.append(f"  go on       rlrun sweep --resume {home}")
    elif best is not None:
        lines.append(f"  go on       rlrun train --resume {home / best.folder} stop.env_steps=...")
    return lines
