"""``rlrun list``: the names that an experiment file may use."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from rlrun.config.problems import ConfigError

Kind = Literal["algorithms", "envs", "models", "configs"]


def list_names(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
) -> None:
    """List the names that an experiment file may use, each with a description."""
    if kind == "configs":
        _print_configs()
        return
    rows = list({"algorithms": _algorithms, "envs": _envs, "models": _models}[kind]())
    width = max((len(name) for name, _ in rows), default=0)
    for name, about in rows:
        typer.echo(f"{name:{width}}  {about}".rstrip())


def _algorithms() -> Iterable[tuple[str, str]]:
    from rlrun.config.registry import ALGORITHMS, algorithm_class

    for name in sorted(ALGORITHMS):
        yield name, _first_line(algorithm_class(name).__doc__)


def _envs() -> Iterable[tuple[str, str]]:
    import gymnasium

    from rlrun.config import registry

    if registry.is_installed("ale_py"):
        import ale_py

        gymnasium.register_envs(ale_py)
    for name, spec in sorted(gymnasium.registry.items()):
        limit, threshold = spec.max_episode_steps, spec.reward_threshold
        facts = [
            f"at most {limit} steps" if limit else "",
            f"solved at {threshold:g}" if threshold else "",
        ]
        yield name, ", ".join(fact for fact in facts if fact)
    for name, path in sorted(registry.SHIPPED_ENVS.items()):
        yield name, _first_line(registry.import_object(path).__doc__)
    for name in sorted(registry.ENVS):
        yield name, "register_env()"


def _models() -> Iterable[tuple[str, str]]:
    from rlrun.config.registry import MODELS, import_object
    from rlrun.policies.catalog import MEMORIES

    for name, path in MODELS.items():
        yield name, _first_line(import_object(path).__doc__)
    for switch, module in MEMORIES.items():
        yield f"model.{switch}: true", _first_line(module.__doc__)


def _print_configs() -> None:
    """Print a table of the shipped files by name, and of the files in ./configs."""
    from rlrun.config.registry import configs_folder, shipped_configs
    from rlrun.experiment.report.tables import Table, print_table

    here, files = Path("configs"), shipped_configs()
    if here.is_dir() and not here.samefile(configs_folder()):
        files = {str(file): file for file in sorted(here.rglob("*.yaml"))} | files
    heads = "CONFIG", "ALGORITHM", "ENVIRONMENT", "REACHED", "TIME"
    rows = [(name, *_facts(file)) for name, file in files.items()]
    print_table(Table(heads, rows))


def _facts(file: Path) -> tuple[str, str, str, str]:
    """Algorithm and environment of an experiment file, and the return and time that it reports.

    These are in its header: ``# reached: 475`` and ``# time: 8 s``.
    """
    from rlrun.config.layers import read_file

    with suppress(ConfigError):
        data, header = read_file(file).plain(), file.read_text(encoding="utf-8")
        env = data.get("env", "")
        noted = dict(re.findall(r"^# (reached|time): (.+)$", header, re.MULTILINE))
        use = str(env.get("use", "") if isinstance(env, dict) else env).rpartition(":")[2]
        return str(data.get("algorithm", "")), use, noted.get("reached", ""), noted.get("time", "")
    return "", "", "", ""


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
