"""``rlrun verify``: what a user types to train the reference cases.

Owns the arguments and the printed table; experiment/verify/verify.py does the work.
"""

import json as json_module
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli import errors

if TYPE_CHECKING:
    from rlrun.experiment.verify.report import Table
    from rlrun.experiment.verify.verify import Verification

_STYLES = {"reached": "green", "falls short": "red", "failed": "red"}


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
        typer.Option(help="Folder of the runs; finished ones are kept. Default: runs/verify."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="CPU cores to use; default: all.")] = None,
    train: Annotated[
        bool, typer.Option("--train/--no-train", help="Or report what the folder has.")
    ] = True,
    markdown: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the results page, with curves; the .json beside it keeps what each case "
            "reached, for pages to come that are written without its runs.",
        ),
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List the cases, and nothing else.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Train the reference cases and hold them against their published numbers.

    Exit code 1 if a case falls short. What a killed verification has finished is not done again.

    rlrun verify ppo-cartpole ppo-pendulum --seeds 5
    """
    from rlrun.cli.run_errors import exit_codes

    with exit_codes():
        from rlrun.experiment.verify import verify as room
        from rlrun.experiment.verify.report import case_table, result_table

        if list_:
            _print_table(case_table(room.choose_cases(cases or [])))
            return
        done = room.verify(
            cases or [],
            seeds=seeds_of(seeds),
            results=results or room.RESULTS,
            jobs=jobs,
            train=train,
            notice=lambda text: typer.echo(text, err=json),
        )
        if markdown is not None:
            done = _write_page(done, markdown)
    if json:
        typer.echo(json_module.dumps(done.to_json(), allow_nan=False))
    else:
        _print_table(result_table(done.results))
    _exit(done)


def _write_page(done: "Verification", page: Path) -> "Verification":
    """Write the page, and what is kept beside it.

    Returns:
        What has been done, with recorded results for cases without runs. On the page they also
        stand in for runs that failed, which must be told all the same.
    """
    from rlrun.experiment.verify.page import write_page
    from rlrun.experiment.verify.record import with_recorded, write_record

    page.parent.mkdir(parents=True, exist_ok=True)
    record = page.with_suffix(".json")
    shown = with_recorded(done, record)
    write_record(shown, record)
    write_page(shown, page)
    pairs = zip(done.results, shown.results, strict=True)
    return replace(done, results=tuple(own if own.seeds else other for own, other in pairs))


def seeds_of(text: str) -> range:
    """The seeds that ``3`` (1, 2, 3) or ``11-13`` (11, 12, 13) stand for.

    Raises:
        typer.BadParameter: for anything else.
    """
    first, dash, last = text.partition("-")
    ends = (first, last) if dash else ("1", first)
    if not all(end.isdecimal() for end in ends) or not 1 <= int(ends[0]) <= int(ends[1]):
        message = f"{text!r} is neither a number of seeds, as 3, nor a range of them, as 11-13"
        raise typer.BadParameter(message, param_hint="--seeds")
    return range(int(ends[0]), int(ends[1]) + 1)


def _print_table(table: "Table") -> None:
    from rlrun.experiment.verify.report import NUMERIC, plain_lines

    if not sys.stdout.isatty():
        typer.echo("\n".join(plain_lines(table)))
        return
    from rich.console import Console
    from rich.table import Table as RichTable

    heads, rows = table
    drawn = RichTable(box=None, pad_edge=False, header_style="bright_black")
    for head in heads:
        drawn.add_column(head, justify="right" if head in NUMERIC else "left")
    for row in rows:
        drawn.add_row(*row, style=_STYLES.get(row[-1]))
    Console().print(drawn)


def _exit(done: "Verification") -> None:
    if done.interrupted:
        raise typer.Exit(errors.INTERRUPTED)
    if not done.all_reached:
        raise typer.Exit(errors.RUN_FAILED)
