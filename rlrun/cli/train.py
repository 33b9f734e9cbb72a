"""``rlrun train``: train an experiment file or a group of its runs, or resume (experiment/)."""

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
    seeds_of,
    split_words,
)

_GROUP = "Train a group of runs: N seeds, counted from the experiment's own, or a range."
Seeds = Annotated[str | None, typer.Option(metavar="N | FIRST-LAST", help=_GROUP)]


def train(  # noqa: PLR0913 - one parameter for each option
    words: Words = None,
    *,
    resume: Annotated[
        Path | None,
        resume_option(
            "Resume this run or group, even after a kill; a checkpoint continues in a new folder. "
            "`auto` resumes the newest unfinished run of FILE, or starts one."
        ),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Algorithm; short for algorithm=...")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment; short for env=...")] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run folder; default: runs/<name>/<date>-<time>-s<seed>.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; short for seed=...")] = None,
    seeds: Seeds = None,
    address: Address = None,
    quiet: Quiet = False,
    plain: Plain = False,
    trust: Trust = False,
) -> None:
    """Train an experiment file until it stops.

    rlrun train configs/ppo_cartpole.yaml training.lr=1e-3

    rlrun train --algorithm PPO --env CartPole-v1 stop.env_steps=100_000

    rlrun train --resume runs/ppo_cartpole stop.env_steps=600_000

    rlrun train configs/ppo_cartpole.yaml --resume auto

    rlrun train configs/ppo_cartpole.yaml training.lr=1e-3,1e-4 --seeds 5
    """
    file, overrides = split_words(words)
    shortcuts = {"algorithm": algorithm, "env": env, "seed": seed}
    auto = resume == AUTO
    if resume is not None and not auto:
        refuse_with_resume("run", FILE=file, **shortcuts, seeds=seeds)
    elif file is None and (algorithm is None or env is None):
        raise typer.BadParameter("name a FILE.yaml, or --algorithm and --env, or --resume RUN")
    from rlrun.actors.ray_runtime import stop_ray
    from rlrun.config.loader import load
    from rlrun.config.sweep import group_overrides
    from rlrun.experiment.run import resume_experiment, run_experiment
    from rlrun.experiment.run_folder import is_sweep_folder
    from rlrun.experiment.sweep.report import SweepOutcome
    from rlrun.experiment.sweep.sweep import resume_sweep, run_sweep

    style = console_style(quiet=quiet, plain=plain)
    # Before the other overrides, so that `env.key=value` adds to `--env`.
    options = [f"{key}={value}" for key, value in shortcuts.items() if value is not None]
    overrides = [*options, *overrides]
    group = group_overrides(overrides, None if seeds is None else seeds_of(seeds))
    if resume is None or auto:
        run = run_experiment if group is None else run_sweep
        loaded = load(file, group or overrides, trust=trust)
        outcome = run(loaded, run_dir=run_dir, resume=auto, address=address, console=style)
    elif is_sweep_folder(resume):
        refuse_with_resume("group", run_dir=run_dir)
        outcome = resume_sweep(resume, overrides, address=address, console=style, trust=trust)
    else:
        outcome = resume_experiment(
            resume, overrides, run_dir=run_dir, address=address, console=style, trust=trust
        )
    stop_ray()  # otherwise Ray waits half a second for log lines at exit
    if outcome.end == "interrupted":
        raise typer.Exit(errors.INTERRUPTED)
    if isinstance(outcome, SweepOutcome) and outcome.any_failed:
        raise typer.Exit(errors.RUN_FAILED)
