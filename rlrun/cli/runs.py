"""The commands that manage runs: ls, show, diff, rerun, rm, du, tail (experiment/run_index.py)."""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rlrun.cli.arguments import (
    RUNS,
    Address,
    Overrides,
    Plain,
    Quiet,
    Run,
    Runs,
    Trust,
    complete_paths,
    output_option,
    run_argument,
    with_folder,
)

if TYPE_CHECKING:
    from rlrun.experiment.run_index import RunEntry

_SEARCHED = "Folder to search, or a sweep whose runs are listed."
Folder = Annotated[Path, run_argument("[FOLDER]", _SEARCHED, complete_paths)]
SortKey = Literal["age", "name", "state", "progress", "best", "size"]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]


def ls(
    folder: Folder = RUNS,
    *,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Only runs with this setting or state; may be a pattern, as in 'env=*Pole*'.",
        ),
    ] = None,
    sort: Annotated[SortKey, typer.Option(help="Column to sort by.")] = "age",
    members: Annotated[
        bool, typer.Option("--members", help="Also show the matching runs of groups and sweeps.")
    ] = False,
    json: Json = False,
) -> None:
    """List runs: state, progress, best value, size and age. Groups and sweeps are one row.

    rlrun ls

    rlrun ls --where state=failed --where training.lr=1e-3 --sort best

    rlrun ls runs/ppo_cartpole/latest
    """
    from rlrun.experiment.report.run_lines import SORT_KEYS, list_table, style_of, to_json
    from rlrun.experiment.report.tables import print_table

    filters = dict(_filter(text) for text in where or ())
    of_members = filters if members else None
    entries = _entries(folder)
    found = [
        entry
        for entry in entries
        if entry.matches(filters) or (members and entry.members_like(filters))
    ]
    found.sort(key=SORT_KEYS[sort])
    if json:
        plain = [to_json(entry, of_members or {}) for entry in found]
        typer.echo(json_module.dumps(plain, allow_nan=False))
    elif found:
        print_table(list_table(found, folder, of_members), style_of)
    else:
        inside = any(entry.is_sweep for entry in entries) and not members
        hint = "; use --members to search groups and sweeps" if inside else ""
        typer.echo(f"no {'such ' if filters else ''}runs in {folder}{hint}", err=True)


def _filter(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"expected KEY=VALUE, got {text!r}", param_hint="--where")
    return key, value


def _entries(folder: Path) -> "list[RunEntry]":
    """The entries below a folder; none if `RUNS` does not exist yet."""
    from rlrun.experiment.run_index import read_index

    return read_index(folder) if folder != RUNS or folder.exists() else []


def show(
    run: Run,
    *,
    json: Json = False,
    svg: Annotated[
        Path | None, output_option("FILE", "Write the panel of a run as a picture.")
    ] = None,
) -> None:
    """Show a run, or a sweep and its runs: outcome, results, checkpoints, size, command, code.

    rlrun show runs/ppo_cartpole

    rlrun show runs/ppo_cartpole --svg panel.svg
    """
    from rlrun.experiment.report.run_lines import show_lines, to_json
    from rlrun.experiment.report.tables import printable
    from rlrun.experiment.run_index import find_entry, header_of

    if json and svg is not None:
        raise typer.BadParameter("--json and --svg exclude each other")
    entry = find_entry(run)
    if svg is not None:
        from rlrun.experiment.report.panel import picture
        from rlrun.experiment.report.sinks import read_rows

        rows = read_rows(entry.path / "metrics.jsonl", warn=False)
        drawn = picture(header_of(entry), rows, title=f"rlrun train {entry.path.parent.name}")
        with_folder(svg).write_text(drawn, encoding="utf-8")
        typer.echo(svg)
        return
    if json:
        typer.echo(json_module.dumps(to_json(entry), allow_nan=False))
    else:
        typer.echo(printable("\n".join(show_lines(entry))))


def diff(first: Run, second: Run, *, json: Json = False) -> None:
    """Show how two runs differ in settings, versions, commits and results.

    rlrun diff runs/ppo_cartpole runs/ppo_cartpole/20260101-120000-s1
    """
    from rlrun.config.problems import InputError
    from rlrun.experiment.report.run_lines import difference_lines, differences
    from rlrun.experiment.report.tables import printable
    from rlrun.experiment.run_index import find_entry

    left, right = find_entry(first), find_entry(second)
    for entry in (left, right):
        if not entry.settings:
            raise InputError(entry.reason)
    if json:
        typer.echo(json_module.dumps(differences(left, right), allow_nan=False))
    else:
        typer.echo(printable("\n".join(difference_lines(left, right))))


def rerun(
    run: Run,
    overrides: Overrides = None,
    *,
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the new run.")] = None,
    address: Address = None,
    quiet: Quiet = False,
    plain: Plain = False,
    trust: Trust = False,
) -> None:
    """Train a run, group or sweep again from the start, with its settings, in a new folder.

    rlrun rerun runs/ppo_cartpole

    rlrun rerun runs/ppo_cartpole training.lr=1e-4
    """
    from rlrun.cli.sweep import sweep
    from rlrun.cli.train import train
    from rlrun.experiment.run_folder import SWEEP_CONFIG, RunFolder, is_sweep_folder, resolve_run

    is_sweep = is_sweep_folder(run)
    config = SWEEP_CONFIG if is_sweep else RunFolder.CONFIG
    words = [str(resolve_run(run, config) / config), *(overrides or ())]
    command = sweep if is_sweep else train
    command(words, run_dir=run_dir, address=address, quiet=quiet, plain=plain, trust=trust)


def rm(
    runs: Runs,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without asking.")] = False,
) -> None:
    """Remove runs, groups and sweeps, after asking; running ones cannot be removed.

    rlrun rm runs/ppo_cartpole/20260101-120000-s1

    rlrun rm 'runs/ppo_cartpole/*' --yes
    """
    from rlrun.experiment.report.run_lines import list_table, style_of
    from rlrun.experiment.report.tables import print_table
    from rlrun.experiment.run_index import matching, removable, remove

    named = [removable(path) for path in matching(runs, links=False)]
    entries = list({entry.path.resolve(): entry for entry in named}.values())  # each once
    if not yes:
        print_table(list_table(entries, RUNS), style_of)
        question = f"Remove {'this run' if len(entries) == 1 else f'these {len(entries)} runs'}?"
        try:
            typer.confirm(question, abort=True)
        except typer.Abort:
            typer.echo("nothing was removed; --yes removes without asking", err=True)
            raise
    for entry in entries:
        remove(entry.path)
        typer.echo(f"removed {entry.path}")


def du(folder: Folder = RUNS, *, json: Json = False) -> None:
    """Show the disk use of runs, the largest first.

    rlrun du
    """
    from rlrun.experiment.report.run_lines import usage_table
    from rlrun.experiment.report.tables import print_table

    entries = _entries(folder)
    if json:
        sizes = {str(entry.path): entry.sizes() for entry in entries}
        typer.echo(json_module.dumps(sizes))
    else:
        print_table(usage_table(entries, folder))


def tail(
    run: Run,
    *,
    rows: Annotated[int, typer.Option("-n", "--rows", min=0, help="Rows to print at first.")] = 10,
    key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="Result key to show in one more column.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print rows as JSON lines.")] = False,
) -> None:
    """Show the last results of a run, and follow it while it is running.

    rlrun tail runs/ppo_cartpole --key evaluation/episode_return_mean
    """
    from rlrun.experiment.report.run_lines import RowLines
    from rlrun.experiment.report.sinks import follow_rows
    from rlrun.experiment.run_folder import RunFolder, is_in_use, resolve_run

    folder = RunFolder(resolve_run(run))
    lines = RowLines(key or ())
    if not json:
        typer.echo(lines.heading())
    for row in follow_rows(folder.metrics, lambda: is_in_use(folder.path), last=rows):
        typer.echo(json_module.dumps(row) if json else lines.line(row))
