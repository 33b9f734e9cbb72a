"""``rlrun report``: one page of a run or a sweep (experiment/report/, experiment/compare/)."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.arguments import Run, output_option, with_folder


def report(
    run: Run,
    *,
    html: Annotated[
        Path | None, output_option("FILE", "Page to write; default: report.html in RUN.")
    ] = None,
) -> None:
    """Write a report on a run or a sweep as one self-contained page.

    rlrun report runs/ppo_cartpole --html report.html
    """
    from rlrun.checkpoint.files import replace_text
    from rlrun.experiment.compare.sweep_page import sweep_page
    from rlrun.experiment.report.run_page import run_page
    from rlrun.experiment.run_folder import SWEEP_CONFIG, is_sweep_folder, resolve_run

    is_sweep = is_sweep_folder(run)
    folder = resolve_run(run, SWEEP_CONFIG) if is_sweep else resolve_run(run)
    page = sweep_page(folder) if is_sweep else run_page(folder)
    path = html or folder / "report.html"
    try:
        replace_text(with_folder(path), page.html())
    except OSError as error:
        if html is None:
            error.add_note(f"write it elsewhere: rlrun report {shlex.quote(str(run))} --html FILE")
        raise
    typer.echo(str(path))
