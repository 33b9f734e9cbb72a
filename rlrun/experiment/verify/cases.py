"""The reference cases of `rlrun verify`: experiments, and the published numbers they must reach.

Owns the types of the table in cases.yaml. It must not know how a case is trained or judged.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter

from rlrun.config.yaml_tree import parse_yaml

Kind = Literal["training", "goal", "evaluation"]


@dataclass(frozen=True)
class Reference:
    """A published number."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    number: float
    """Mean return; reached at this or above."""
    env_steps: int
    """Env steps it took, and the most that the case may take."""
    kind: Kind
    source: str
    """Key of SOURCES."""
    published: str
    """The number as it was published, and where exactly."""


@dataclass(frozen=True)
class Case:
    """One experiment and the number it is compared with."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    algorithm: str
    env: str
    config: str
    """File in configs/."""
    reference: Reference
    overrides: tuple[str, ...] = ()
    """``KEY=VALUE``, laid over the file."""
    env_steps: int | None = None
    """Env steps to train, if fewer than the reference's; None trains as many."""
    note: str = ""
    """How the published experiment differs, and what else a reader should know."""

    def all_overrides(self) -> list[str]:
        """The overrides, with the one that bounds the env steps.

        A number of training is compared at the end of the whole budget: to stop at the goal would
        be to stop at a lucky moment.
        """
        budget = f"stop.env_steps={self.env_steps or self.reference.env_steps}"
        no_goal = ["stop.episode_return_mean=null"] if self.reference.kind == "training" else []
        return [*self.overrides, *no_goal, budget]


def read_cases(path: Path) -> tuple[dict[Kind, str], dict[str, str], tuple[Case, ...]]:
    """Kinds of numbers, sources and cases of a table.

    Raises:
        ConfigError: it is not valid YAML, or has a key twice. ValidationError: a case is malformed.
    """
    table = parse_yaml(path.read_text(encoding="utf-8"), path.name).plain()
    cases = [{"name": name, **case} for name, case in table["cases"].items()]
    return (
        TypeAdapter(dict[Kind, str]).validate_python(table["kinds"]),
        TypeAdapter(dict[str, str]).validate_python(table["sources"]),
        TypeAdapter(tuple[Case, ...]).validate_python(cases),
    )


KINDS, SOURCES, CASES = read_cases(Path(__file__).with_name("cases.yaml"))
"""What is measured for each kind of number; the publications; the cases in their order."""
