"""``rlrun check``: validate experiment files and show the resolved settings."""

from typing import Annotated

import typer

from rlrun.cli import errors


def check(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE... [KEY=VALUE ...]", help="Files or run folders, then overrides."
        ),
    ],
    show: Annotated[
        bool,
        typer.Option("--show", help="Print the resolved config with the origin of each value."),
    ] = False,
) -> None:
    """Check experiment files without starting anything: every error of every file at once."""
    from pathlib import Path

    from rlrun.config.dump import show_yaml
    from rlrun.config.loader import load
    from rlrun.config.problems import ConfigError, Problem

    overrides = [text for text in arguments if "=" in text and not Path(text).is_file()]
    files = [text for text in arguments if text not in overrides]
    if not files:
        raise typer.BadParameter("name a FILE, such as configs/ppo_cartpole.yaml")
    problems: list[Problem] = []
    for file in files:
        try:
            loaded = load(Path(file) / "config.yaml" if Path(file).is_dir() else file, overrides)
        except ConfigError as error:
            problems += error.problems
            continue
        errors.report_problems(loaded.warnings, style="yellow", prefix="warning: ")
        experiment = loaded.experiment
        if show:
            typer.echo(show_yaml(experiment, loaded.origin), nl=False)
        else:
            typer.echo(f"{file}: ok, {experiment.algorithm} on {experiment.env.use}")
    if problems:
        raise ConfigError(dict.fromkeys(problems))
