"""Errors of the user: problems of a config with their origins, and tracebacks of the user's code.

Owns: the format of an error line. Must not know: how problems are found, nor how they are printed.
"""

import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import dropwhile
from traceback import TracebackException

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
    """A problem of the value at an address; its origin is not known yet."""

    path: Path
    message: str


@dataclass(frozen=True)
class Problem:
    """A problem with its origin; renders as ``file:line:col: key: message``."""

    origin: Origin
    key: str
    message: str

    def render(self) -> str:
        """The one line that a user sees."""
        return ": ".join(part for part in (str(self.origin), self.key, self.message) if part)


class InputError(Exception):
    """Something that the user named cannot be used; printed as its message, without a traceback."""

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
    """The error of a setting that does not fit the environment, found when building them."""
    return ConfigError([Problem(Origin("this environment"), key, message)])


def join(path: Path) -> str:
    """``("training", "lr", 1)`` as ``training.lr[1]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


_NOT_SHOWN = {"rlrun", "gymnasium", "ray", "typer", "click", "torch"}
_NOT_THE_USERS = {
    *_NOT_SHOWN,
    *sys.stdlib_module_names,
    *("numpy", "pydantic", "pydantic_core", "yaml", "rich", "safetensors"),
}
"""Packages that are not the user's code."""


def user_traceback(error: BaseException) -> str:
    """The traceback of an error and its causes, from the first frame of the user's code on.

    Frames of rlrun, its callers and its libraries are left out; if no frames of the user's remain,
    all are kept, since the failure is in rlrun or a library. For an error from another process, it
    is the text that `keep_traceback` has stored.
    """
    if _KEPT in vars(error):
        return str(vars(error)[_KEPT])
    shown = TracebackException.from_exception(error)
    chain = list(_chain(shown, error))
    if all(_NOT_THE_USERS.issuperset(_packages(each)) for _, each in chain):
        return "".join(shown.format())
    for part, each in chain:
        frames = zip(_packages(each), part.stack, strict=False)
        from_users = dropwhile(lambda frame: frame[0] in _NOT_THE_USERS, frames)
        kept = [line for package, line in from_users if package not in _NOT_SHOWN]
        part.stack = traceback.StackSummary.from_list(kept)
        # What rlrun handled before it called the user's code does not explain its failure.
        context = each.__context__
        if context is not None and _NOT_SHOWN.issuperset(_packages(context)):
            part.__context__ = None
    return "".join(shown.format())


def place_in_users_code(error: BaseException) -> str | None:
    """File and line of the last frame of the user's code; None if there is no such frame."""
    frames = zip(_packages(error), traceback.extract_tb(error.__traceback__), strict=True)
    places = [
        f"{at.filename}:{at.lineno}" for package, at in frames if package not in _NOT_THE_USERS
    ]
    return places[-1] if places else None


def keep_traceback(error: BaseException) -> None:
    """Store an error's traceback in it as text, and as a note, before it is sent to a process.

    Errors with an ``exit_code`` need none: their messages are complete.
    """
    if not hasattr(error, "exit_code") and _KEPT not in vars(error):
        vars(error)[_KEPT] = user_traceback(error)
        error.add_note(vars(error)[_KEPT])


_KEPT = "kept_traceback"


def _chain(
    shown: TracebackException, error: BaseException
) -> Iterator[tuple[TracebackException, BaseException]]:
    """An error, its causes and contexts, and the errors that it groups."""
    left: list[tuple[TracebackException | None, BaseException | None]] = [(shown, error)]
    while left:
        part, each = left.pop()
        if part is None or each is None:  # as where an error has been seen already
            continue
        yield part, each
        left += [(part.__cause__, each.__cause__), (part.__context__, each.__context__)]
        if isinstance(each, BaseExceptionGroup):
            left += zip(part.exceptions or (), each.exceptions, strict=False)


def _packages(error: BaseException) -> list[str]:
    """The package of each frame."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame in frames]
