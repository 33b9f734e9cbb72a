"""``rlrun verify``: train the reference cases (experiment/verify/)."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli import errors
from rlrun.cli.arguments import output_option, seeds_of

_STYLES = {"reached": "green", "passes": "green", "falls short": "red", "failed": "red"}


def verify(
    cases: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CASE ...]", help="Cases; default: all.", show_default=False),
    ] = None,
    *,
    seeds: Annotated[
        str, typer.Option(metavar="N | FIRST-LAST", help="Seeds of each case: 1 to N, or a range.")
    ] = "3",
    results: Annotated[
        Path | None,
        typer.Option(help="Folder of the runs; finished ones are reused. Default: runs/verify."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="CPU cores to use; default: all.")] = None,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Train, or only report runs in the folder.")
    ] = True,
    markdown: Annotated[
        Path | None,
        output_option(
            "FILE",
            "Write the results page, with curves. A .json file beside it keeps the results of all "
            "cases, so that later pages can be written without their runs.",
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the cases and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Train the reference cases and compare them with published numbers.

    The exit code is 1 if a case falls short. A killed verification can be started again: runs that
    have finished are reused.

    rlrun verify ppo-cartpole ppo-pendulum --seeds 5
    """
    from rlrun.experiment.report.tables import print_table
    from rlrun.experiment.verify import page
    from rlrun.experiment.verify import verify as room

    if list_:
        print_table(page.case_table(room.choose_cases(cases or [])))
        return
    which = seeds_of(seeds)
    done = room.verify(
        cases or [],
        seeds=range(1, which + 1) if isinstance(which, int) else which,
        results=results or room.RESULTS,
        jobs=jobs,
        train=train,
        notice=lambda text: typer.echo(text, err=json),
    )
    if markdown is not None:
        done = page.publish(done, markdown)
    if json:
        typer.echo(json_module.dumps(done.to_json(), allow_nan=False))
    else:
        print_table(page.result_table(done.results), lambda row: _STYLES.get(row[-1]))
    if done.interrupted:
        raise typer.Exit(errors.INTERRUPTED)
    if not done.all_reached:
        raise typer.Exit(errors.RUN_FAILED)
