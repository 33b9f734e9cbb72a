"""``rlrun train``: what a user types to train or to go on training.

Owns the arguments and nothing else; experiment/run.py does the work.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.words import split_words

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE.yaml] [KEY=VALUE ...]", show_default=False),
]


def train(  # noqa: PLR0913 - one parameter for each option
    words: Words = None,
    *,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with this run folder, killed runs included.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Algorithm; short for algorithm=...")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment; short for env=...")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Exact folder; default runs/<name>/<date>-<time>-s<seed>.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; short for seed=...")] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster to use instead of a local Ray.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only how it ended.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="One line an iteration.")] = False,
) -> None:
    """Train what an experiment file says, until it stops.

    rlrun train configs/ppo_cartpole.yaml training.lr=1e-3

    rlrun train --algorithm PPO --env CartPole-v1 stop.env_steps=100_000

    rlrun train --resume runs/ppo_cartpole stop.env_steps=600_000
    """
    file, overrides = split_words(words or [])
    named = {"algorithm": algorithm, "env": env, "seed": seed}
    if resume is not None:
        _refuse_with_resume({"FILE": file, "--run-dir": run_dir} | _as_options(named))
    elif file is None and (algorithm is None or env is None):
        raise typer.BadParameter("name a FILE.yaml, or --algorithm and --env, or --resume RUN")
    from rlrun.cli.run_errors import exit_codes

    with exit_codes():
        from rlrun.actors.ray_runtime import stop_ray
        from rlrun.config.loader import load
        from rlrun.experiment.report.console import choose_style
        from rlrun.experiment.run import resume_experiment, run_experiment

        style = choose_style(quiet=quiet, plain=plain) if quiet or plain else None
        if resume is not None:
            outcome = resume_experiment(resume, overrides, address=address, console=style)
        else:
            # They come first, so that `env.key=value` adds to what they say.
            first = [f"{key}={value}" for key, value in named.items() if value is not None]
            loaded = load(file, [*first, *overrides])
            outcome = run_experiment(loaded, run_dir=run_dir, address=address, console=style)
        stop_ray()  # left to the interpreter's exit, Ray would wait half a second for log lines
    if outcome.end == "interrupted":
        raise typer.Exit(130)


def _as_options(named: Mapping[str, object]) -> dict[str, object]:
    return {f"--{name}": value for name, value in named.items()}


def _refuse_with_resume(options: Mapping[str, object]) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise typer.BadParameter(
            f"--resume goes on with a run as its folder says, so it takes no {', '.join(given)}"
        )
