"""``rlrun list``: the names that an experiment file may use."""

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Kind(StrEnum):
    """What can be listed."""

    ALGORITHMS = "algorithms"
    ENVS = "envs"
    MODELS = "models"
    CONFIGS = "configs"


def list_names(
    kind: Annotated[Kind, typer.Argument(help="What to list.", show_default=False)],
) -> None:
    """List the names that an experiment file may use, one a line with a description."""
    listing = {
        Kind.ALGORITHMS: _algorithms,
        Kind.ENVS: _envs,
        Kind.MODELS: _models,
        Kind.CONFIGS: _configs,
    }[kind]
    rows = list(listing())
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


def _configs() -> Iterable[tuple[str, str]]:
    from rlrun.config.registry import configs_folder

    folder = Path("configs")
    if not folder.is_dir():
        folder = configs_folder()
    for file in sorted(folder.rglob("*.yaml")):
        first = file.read_text(encoding="utf-8").partition("\n")[0]
        yield str(file), first.lstrip("# ") if first.startswith("#") else ""


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
