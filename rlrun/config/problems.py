"""Errors of the user: problems of a config with their origins, and tracebacks of the user's code.

Owns: the form of one error line. Must not know: how problems are found, what becomes of the text.
"""

import traceback
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
class Finding:
    """Something that is wrong with the value at an address, wherever that was written."""

    path: Path
    message: str


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong; renders as ``file:line:col: key: message``."""

    origin: Origin
    key: str
    message: str

    def render(self) -> str:
        """The one line that a user sees."""
        return ": ".join(part for part in (str(self.origin), self.key, self.message) if part)


class InputError(Exception):
    """Something that a user named cannot be used; the message is all that a user needs."""

    exit_code = 2


class ConfigError(ValueError):
    """Everything that is wrong with one config, in the order of the file."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]):
        self.problems = tuple(problems)
        super().__init__(self.render())

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[tuple[Problem, ...]]]:
        return (type(self), (self.problems,))

    def render(self) -> str:
        """One line a problem."""
        return "\n".join(problem.render() for problem in self.problems)


def misfit(key: str, message: str) -> ConfigError:
    """The error of a setting that does not fit the environment, as building them shows."""
    return ConfigError([Problem(Origin("this environment"), key, message)])


def join(path: Path) -> str:
    """``("training", "lr", 1)`` as ``training.lr[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


_NOT_THE_USERS = ("rlrun.", "gymnasium.", "ray.")


def user_traceback(error: BaseException) -> str:
    """The traceback of an error, without the frames of rlrun, gymnasium and Ray.

    If no other frames are left, the failure lies there, and all are kept.
    """
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not f"{frame.f_globals.get('__name__', '')}.".startswith(_NOT_THE_USERS)
    ]
    if not frames:
        return "".join(traceback.format_exception(error))
    lines = ["Traceback (most recent call last):\n"]
    lines += traceback.StackSummary.extract(iter(frames)).format()
    return "".join([*lines, *traceback.format_exception_only(error)])
