"""``rlrun sweep``: what a user types to search settings.

Owns the arguments and nothing else; experiment/sweep/sweep.py does the work.
"""

from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli import errors
from rlrun.cli.words import split_words

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE.yaml] [KEY=VALUE ...]", show_default=False),
]


def sweep(
    words: Words = None,
    *,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this sweep, killed ones included.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Exact folder; default runs/<name>/<date>-<time>-sweep-s<seed>."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to use instead of a local Ray.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only how it ended.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="One line a trial.")] = False,
) -> None:
    """Run the sweep: section of a file; every trial is an ordinary run folder.

    rlrun sweep configs/sweep_ppo_cartpole.yaml sweep.trials=8

    rlrun sweep --resume runs/sweep_ppo_cartpole
    """
    file, overrides = split_words(words or [])
    if resume is not None and (file is not None or overrides or run_dir is not None):
        raise typer.BadParameter("--resume goes on with a sweep as its folder says, nothing else")
    if resume is None and file is None:
        raise typer.BadParameter("name a FILE.yaml, or --resume SWEEP")
    from rlrun.cli.run_errors import exit_codes

    with exit_codes():
        from rlrun.experiment.report.console import choose_style
        from rlrun.experiment.sweep.sweep import resume_sweep, run_sweep

        style = choose_style(quiet=quiet, plain=plain) if quiet or plain else None
        if resume is not None:
            outcome = resume_sweep(resume, address=address, console=style)
        else:
            assert file is not None
            outcome = run_sweep(file, overrides, run_dir=run_dir, address=address, console=style)
    if outcome.end == "interrupted":
        raise typer.Exit(errors.INTERRUPTED)
    if outcome.all_failed:
        raise typer.Exit(errors.RUN_FAILED)
