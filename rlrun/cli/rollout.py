"""``rlrun rollout``: what a user types to see a trained policy play.

Owns the arguments and the printed table; experiment/rollout.py plays.
"""

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rlrun.experiment.rollout import Rollout


def rollout(  # noqa: PLR0913 - one parameter for each option
    run_or_checkpoint: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="Run folder, or one checkpoint.")
    ],
    *,
    episodes: Annotated[
        int | None, typer.Option(min=1, help="Episodes; default: as in the run's evaluation.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="End after so many env steps.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed; default: that of the run's evaluation.")
    ] = None,
    explore: Annotated[
        bool, typer.Option("--explore", help="Sample actions; default: the most probable ones.")
    ] = False,
    render: Annotated[bool, typer.Option("--render", help="Show the environment.")] = False,
    video: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a video of each episode.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all transitions as npz.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Play a trained policy: the run's best checkpoint, deterministic actions.

    rlrun rollout runs/ppo_cartpole --episodes 20 --video videos
    """
    from rlrun.cli.run_errors import exit_codes

    if render and video is not None:
        raise typer.BadParameter("an environment is shown or filmed: --render or --video, not both")
    with exit_codes():
        from rlrun.experiment import rollout as room

        played = room.rollout(
            run_or_checkpoint,
            room.RolloutRequest(
                episodes=episodes,
                steps=steps,
                seed=seed,
                explore=explore,
                render=render,
                video=video,
                save=save,
            ),
        )
    if json:
        typer.echo(json_module.dumps(played.to_json(), allow_nan=False))
    else:
        _print_table(played)


def _print_table(played: "Rollout") -> None:
    actions = "sampled" if played.explore else "deterministic"
    typer.echo(
        f"{played.algorithm} on {played.env}, checkpoint {played.checkpoint}, "
        f"{actions} actions, seed {played.seed}"
    )
    typer.echo(f"{'episode':>8} {'return':>12} {'length':>8}")
    for number, episode in enumerate(played.episodes, 1):
        typer.echo(f"{number:>8} {episode.episode_return:>12.2f} {episode.length:>8}")
    statistics = played.statistics
    if not played.episodes:
        typer.echo("no episode ended within the step limit")
    else:
        typer.echo(
            f"return {statistics['episode_return_mean']:.2f} ± "
            f"{statistics['episode_return_std']:.2f}, min {statistics['episode_return_min']:.2f}, "
            f"max {statistics['episode_return_max']:.2f}, over {len(played.episodes)} episodes"
        )
    for path in played.videos:
        typer.echo(f"video {path}")
