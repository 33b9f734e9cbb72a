"""``rlrun init``: a commented starter file on stdout."""

from typing import Annotated

import typer


def init(
    algorithm: Annotated[str, typer.Argument(help="A registered algorithm.")] = "PPO",
    env: Annotated[str, typer.Argument(help="A gymnasium id.")] = "CartPole-v1",
) -> None:
    """Write a commented starter file to stdout: rlrun init PPO CartPole-v1 > my.yaml."""
    from rlrun.config.loader import load
    from rlrun.config.reference import starter

    # Raises for a wrong name, with the nearest one.
    load(None, [f"algorithm={algorithm}", f"env={env}"])
    typer.echo(starter(algorithm, env), nl=False)
