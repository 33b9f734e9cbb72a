"""``rlrun sweep``: search settings, or resume a sweep (experiment/sweep/sweep.py)."""

from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli import errors
from rlrun.cli.arguments import (
    AUTO,
    Address,
    Plain,
    Quiet,
    Trust,
    Words,
    console_style,
    refuse_with_resume,
    resume_option,
    split_words,
)


def sweep(
    words: Words = None,
    *,
    resume: Annotated[
        Path | None,
        resume_option(
            "Resume this sweep, even after a kill. `auto` resumes the newest unfinished sweep of "
            "FILE, or starts one."
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Sweep folder; default: runs/<name>/<date>-<time>-sweep-s<seed>."),
    ] = None,
    address: Address = None,
    quiet: Quiet = False,
    plain: Plain = False,
    trust: Trust = False,
) -> None:
    """Run the sweep of a file's section `sweep`; every trial is a run folder.

    rlrun sweep configs/sweep_ppo_cartpole.yaml sweep.trials=8

    rlrun sweep --resume runs/sweep_ppo_cartpole

    rlrun sweep configs/sweep_ppo_cartpole.yaml --resume auto
    """
    file, overrides = split_words(words)
    auto = resume == AUTO
    if resume is not None and not auto:
        refuse_with_resume("sweep", FILE=file, run_dir=run_dir)
    elif file is None:
        raise typer.BadParameter("name a FILE.yaml, or --resume SWEEP")
    from rlrun.config.loader import load
    from rlrun.experiment.sweep.sweep import resume_sweep, run_sweep

    style = console_style(quiet=quiet, plain=plain)
    if resume is not None and not auto:
        outcome = resume_sweep(resume, overrides, address=address, console=style, trust=trust)
    else:
        loaded = load(file, overrides, trust=trust)
        outcome = run_sweep(loaded, run_dir=run_dir, resume=auto, address=address, console=style)
    if outcome.end == "interrupted":
        raise typer.Exit(errors.INTERRUPTED)
    if outcome.all_failed:
        raise typer.Exit(errors.RUN_FAILED)
