"""The reference cases of `rlrun verify`: experiments, and the published numbers for them.

Owns the types of the table in cases.yaml. It must not know how a case is trained or judged.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter

from rlrun.config.yaml_tree import parse_yaml

Kind = Literal["training", "goal", "evaluation"]
KIND_NAMES: tuple[Kind, ...] = ("training", "goal", "evaluation")


@dataclass(frozen=True)
class Reference:
    """A published number: a benchmark, or the pass mark of a test."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    number: float
    """Mean return to reach."""
    env_steps: int
    """Env steps of the published run."""
    kind: Kind
    source: str
    """Key of SOURCES."""
    published: str
    """The number as published, with details."""
    pass_mark: bool = False
    """Whether it ends a test, so that more can be reached."""


@dataclass(frozen=True)
class Case:
    """One experiment and the numbers it is compared with."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    algorithm: str
    env: str
    config: str
    """File in configs/."""
    references: tuple[Reference, ...]
    """The env steps of the first are the budget; if it is of `training`, the run uses all."""
    overrides: tuple[str, ...] = ()
    """``KEY=VALUE``, which override the file."""
    env_steps: int | None = None
    """Env steps to train if fewer than the first reference's; None for the same number."""
    note: str = ""
    """How the published experiment differs, and what else a reader should know."""

    @property
    def budget(self) -> int:
        """The most env steps that the run takes."""
        return self.env_steps or self.references[0].env_steps

    @property
    def ends_at_goal(self) -> bool:
        """Whether the run may end before its budget.

        A number of training is compared at the end of the whole budget, as a run that stops at the
        goal stops at a lucky moment.
        """
        return self.references[0].kind != "training"

    def all_overrides(self) -> list[str]:
        """The overrides, with the one that bounds the env steps."""
        no_goal = [] if self.ends_at_goal else ["stop.episode_return_mean=null"]
        return [*self.overrides, *no_goal, f"stop.env_steps={self.budget}"]

    @property
    def bars(self) -> tuple[Reference, ...]:
        """The numbers that decide: the highest benchmark of each kind, or pass mark without any.

        They took at least as many env steps as the run; those of `training` decide only if the run
        uses its whole budget.
        """
        comparable = [
            reference
            for reference in self.references
            if reference.env_steps >= self.budget
            and not (reference.kind == "training" and self.ends_at_goal)
        ]
        benchmarks = [reference for reference in comparable if not reference.pass_mark]
        ascending = sorted(benchmarks or comparable, key=lambda reference: reference.number)
        highest = {reference.kind: reference for reference in ascending}
        return tuple(highest[kind] for kind in KIND_NAMES if kind in highest)


def read_cases(path: Path) -> tuple[dict[Kind, str], dict[str, str], tuple[Case, ...]]:
    """Read the kinds of numbers, the sources and the cases of a table.

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
"""Description of each kind of number; the publications; the cases in their order."""
