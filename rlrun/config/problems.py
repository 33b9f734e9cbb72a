"""What is wrong with a config, and where: origins, problems, and the error that carries them all.

Owns: the form of one line of complaint. Must not know: how problems are found or printed.
"""

from collections.abc import Iterable
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Address of a value: keys and list positions from the top."""


@dataclass(frozen=True)
class Origin:
    """Where a value was written: a file with line and column, or a source without lines."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = (self.source, self.line, self.column)
        return ":".join(str(part) for part in parts if part is not None)


DEFAULT = Origin("default")
COMMAND_LINE = Origin("<command line>")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong; renders as ``file:line:col: key: message``."""

    origin: Origin
    key: str
    message: str

    def render(self) -> str:
        """The one line that a user sees."""
        return ": ".join(part for part in (str(self.origin), self.key, self.message) if part)


class ConfigError(ValueError):
    """Everything that is wrong with one config, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]):
        self.problems = tuple(problems)
        super().__init__(self.render())

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[tuple[Problem, ...]]]:
        return (type(self), (self.problems,))

    def render(self) -> str:
        """One line a problem."""
        return "\n".join(problem.render() for problem in self.problems)


def join(path: Path) -> str:
    """``("training", "lr", 1)`` as ``training.lr[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
