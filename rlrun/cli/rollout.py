"""``rlrun rollout``: episodes of a trained policy (experiment/rollout.py)."""

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.arguments import Overrides, RunOrCheckpoint, Trust, output_option


def rollout(  # noqa: PLR0913 - one parameter for each option
    run_or_checkpoint: RunOrCheckpoint,
    overrides: Overrides = None,
    *,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, help="Number of episodes; default: as in the run's evaluation."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="End after this many env steps.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed; default: as in the run's evaluation.")
    ] = None,
    explore: Annotated[
        bool | None,
        typer.Option(help="Sample actions, or take the likeliest; default: as in the evaluation."),
    ] = None,
    render: Annotated[bool, typer.Option("--render", help="Show the environment.")] = False,
    video: Annotated[Path | None, output_option("DIR", "Write a video of each episode.")] = None,
    save: Annotated[Path | None, output_option("FILE", "Write all transitions as npz.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    trust: Trust = False,
) -> None:
    """Roll out a checkpoint, or the best one of a run, as in the run's evaluation.

    rlrun rollout runs/ppo_cartpole --episodes 20 --video videos

    rlrun rollout runs/ppo_cartpole env.max_episode_steps=200
    """
    if render and video is not None:
        raise typer.BadParameter("--render and --video exclude each other")
    if save is not None and save.suffix not in ("", ".npz"):
        raise typer.BadParameter(f"--save writes npz files: name it {save.with_suffix('.npz')}")
    from rlrun.experiment import rollout as room

    done = room.rollout(
        run_or_checkpoint,
        overrides or (),
        episodes=episodes,
        steps=steps,
        seed=seed,
        explore=explore,
        render=render,
        video=video,
        save=save,
        trust=trust,
    )
    lines = [json_module.dumps(done.to_json(), allow_nan=False)] if json else done.lines()
    typer.echo("\n".join(lines))
