"""``rlrun init``: a commented starter file on stdout."""

import re
from typing import Annotated

import typer


def init(
    algorithm: Annotated[
        str, typer.Argument(help="A registered algorithm, or a shipped file: ppo/hopper.")
    ] = "PPO",
    env: Annotated[
        str | None, typer.Argument(help="A gymnasium id.", show_default="CartPole-v1")
    ] = None,
) -> None:
    """Write a starter file to stdout: rlrun init PPO CartPole-v1 > my.yaml.

    rlrun init ppo/hopper > my.yaml    a shipped file, with settings that were measured
    """
    from rlrun.config.problems import ConfigError, InputError
    from rlrun.config.reference import starter
    from rlrun.config.registry import shipped_configs, suggestion

    shipped, name = shipped_configs(), algorithm.replace("_", "/", 1)
    if "/" in algorithm or name in shipped:
        if name not in shipped:
            near = suggestion(name, shipped)
            raise InputError(
                f"there is no shipped file {algorithm!r}{near}; see rlrun list configs"
            )
        if env is not None:
            raise InputError(f"{algorithm} sets its own environment; remove {env}")
        file = shipped[name]
        text = file.read_text(encoding="utf-8")
        typer.echo(re.sub(r"(?m)^base: ", f"base: {file.parent}/", text), nl=False)
        return
    env = "CartPole-v1" if env is None else env
    words, several = [f"algorithm={algorithm}", f"env={env}"], False
    try:
        _require_fit(words)
    except ConfigError as error:
        several = [problem.key for problem in error.problems] == ["multi_agent"]
        if not several:
            raise
        _require_fit([*words, "multi_agent.policies=[shared]"])
    typer.echo(starter(algorithm, env, several=several), nl=False)


def _require_fit(words: list[str]) -> None:
    """Raise for a wrong name, with the nearest one, and if the algorithm cannot act in the env."""
    from rlrun.config.loader import load
    from rlrun.config.problems import ConfigError
    from rlrun.experiment.rollout import build_alone

    loaded = load(None, words)
    try:
        build_alone(loaded.experiment).stop()
    except ConfigError as error:
        raise loaded.placed(error) from error
