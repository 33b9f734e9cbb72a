"""``rlrun init``: a commented starter file on stdout."""

import re
from typing import Annotated

import typer


def init(
    algorithm: Annotated[
        str, typer.Argument(help="A registered algorithm, or a shipped file: ppo/hopper.")
    ] = "PPO",
    env: Annotated[str, typer.Argument(help="A gymnasium id.")] = "CartPole-v1",
) -> None:
    """Write a starter file to stdout: rlrun init PPO CartPole-v1 > my.yaml.

    rlrun init ppo/hopper > my.yaml    a shipped file, with settings that were measured
    """
    from rlrun.config.loader import load
    from rlrun.config.problems import InputError
    from rlrun.config.reference import starter
    from rlrun.config.registry import shipped_configs, suggestion

    if "/" in algorithm:
        if algorithm not in shipped_configs():
            near = suggestion(algorithm, shipped_configs())
            raise InputError(
                f"there is no shipped file {algorithm!r}{near}; see rlrun list configs"
            )
        file = shipped_configs()[algorithm]
        text = file.read_text(encoding="utf-8")
        typer.echo(re.sub(r"(?m)^base: ", f"base: {file.parent}/", text), nl=False)
        return
    # Raises for a wrong name, with the nearest one.
    load(None, [f"algorithm={algorithm}", f"env={env}"])
    typer.echo(starter(algorithm, env), nl=False)
