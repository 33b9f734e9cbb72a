"""The outcome of a run, as an object and as the last lines on the console.

Owns the words. It must not know the steps of a run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlrun.data.results import RETURN, Row, number_at
from rlrun.experiment.report.numbers import clock_time, size_text, two_decimals
from rlrun.experiment.run_folder import RunFolder, in_shell
from rlrun.experiment.stopping import StopCriteria

End = Literal["finished", "interrupted"]


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended; a failed run raises an error instead."""

    end: End
    reason: str
    """The stop criteria that were reached, or the signal that was received."""
    folder: Path
    result: Row | None
    """The last result; None if there was none."""
    checkpoint: Path | None
    """The newest checkpoint; None if there is none."""
    checkpoint_bytes: int
    best_checkpoint: Path | None


def summary_lines(
    outcome: RunOutcome, stop: StopCriteria, *, without_replay: bool = False
) -> list[str]:
    """The outcome in a few lines, with commands to run next; the first is the headline.

    Args:
        without_replay: checkpoints lack a replay buffer that the run learns from.
    """
    lines = [_headline(outcome)]
    result = outcome.result
    if result is not None:
        mean = number_at(result, RETURN)
        lines.append(
            f"  return      {two_decimals(mean, 'unknown')} after "
            f"{int(result['env_steps']):,} env steps and {clock_time(result.get('time_s') or 0)} "
            "of iterations"
        )
        missed = stop.missed(result)
        if missed and outcome.end == "finished":
            lines.append(f"  not reached {', '.join(missed)}")
    lines.append(f"  run         {outcome.folder}")
    if outcome.checkpoint is not None:
        best = outcome.best_checkpoint
        other = f" (best: {best.name})" if best and best != outcome.checkpoint else ""
        size = size_text(outcome.checkpoint_bytes)
        lack = " without the replay buffer" if without_replay else ""
        lines.append(f"  checkpoint  {outcome.checkpoint.name}, {size}{lack}{other}")
        lines.append(f"  roll out    rlrun rollout {in_shell(outcome.folder)}")
    if outcome.checkpoint is not None or outcome.end == "interrupted":
        command = resume_command(outcome.folder, end=outcome.end, reason=outcome.reason)
        lines.append(f"  resume      {command}")
    return lines


def _headline(outcome: RunOutcome) -> str:
    if outcome.end == "finished":
        return f"Finished: {outcome.reason}"
    iteration = outcome.result["training_iteration"] if outcome.result else 0
    where = f"after iteration {iteration}"
    saved = outcome.checkpoint is not None and int(outcome.checkpoint.name) == iteration
    return f"Interrupted ({outcome.reason}) {where}{', saved' if saved else ''}"


def resume_command(folder: Path, *, end: str, reason: str | None) -> str:
    """The command that resumes a run, with another stop if it has reached its own."""
    command = f"{RunFolder.RESUME} {in_shell(folder)}"
    if end != "finished":
        return command
    key = (reason or "").split(" ", 1)[0] or "stop"
    return f"{command} stop.{key}=..."
