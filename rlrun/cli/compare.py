"""``rlrun compare``: compare runs and groups (experiment/compare/)."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rlrun.cli.arguments import Runs, numbers_of, output_option, with_folder

Mode = Literal["max", "min"]


def compare(  # noqa: PLR0913 - one parameter for each option
    runs: Runs,
    *,
    metric: Annotated[
        str, typer.Option(help="Result key to compare, a/b for nested ones.")
    ] = "episode_return_mean",
    mode: Annotated[
        Mode, typer.Option(help="Whether a higher or a lower value is better.")
    ] = "max",
    threshold: Annotated[
        str | None,
        typer.Option(metavar="X[,Y...]", help="Values to reach; default: the goal in `stop`."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="N[,M...]",
            help="Env steps to compare at; default: the most that all runs have.",
        ),
    ] = None,
    plot: Annotated[Path | None, output_option("FILE", "Draw the curves, as PNG or SVG.")] = None,
    html: Annotated[Path | None, output_option("FILE", "Write one self-contained page.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a row for each run.")] = False,
) -> None:
    """Compare runs of equal configuration with others: tables, curves and probabilities.

    rlrun compare runs/ppo_cartpole/latest

    rlrun compare runs/a runs/b 'runs/c/*' --plot curves.png --html compare.html

    rlrun compare runs/a runs/b --at 20_000,100_000 --threshold 195,475
    """
    from rlrun.experiment.compare import show
    from rlrun.experiment.compare.comparison import compare as compare_runs
    from rlrun.experiment.report.tables import printable

    if json and csv:
        raise typer.BadParameter("--json and --csv exclude each other")
    if plot is not None and html is not None and plot.absolute() == html.absolute():
        raise typer.BadParameter("--plot and --html need different files")
    if plot is not None:
        show.check_picture(plot)
    numbers: dict[str, Any] = {
        "threshold": numbers_of("--threshold", threshold, float),
        "at": numbers_of("--at", at, int, least=1),
    }
    found = compare_runs(runs, metric=metric, mode=mode, **numbers)
    if plot is not None:
        show.plot(found, with_folder(plot))
    if html is not None:
        show.write_page(found, with_folder(html))
    if json:
        typer.echo(json_module.dumps(show.to_json(found), allow_nan=False))
    elif csv:
        typer.echo(show.to_csv(found), nl=False)
    else:
        typer.echo(printable("\n".join(show.text_lines(found))))
