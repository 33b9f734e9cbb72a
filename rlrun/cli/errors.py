"""How a command ends: exit codes and error messages.

Owns the exit codes of all commands and the form of errors on the terminal. It must not know what a
command does.
"""

import errno
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlrun.config.problems import Problem

FINISHED = 0
RUN_FAILED = 1
INPUT_WRONG = 2
INTERRUPTED = 130

_REFUSALS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENAMETOOLONG,
    errno.EISDIR,
    errno.ENOTDIR,
}
"""Errors of a full disk, or of a path that cannot be written: a traceback would add nothing."""


def report(error: BaseException) -> int:
    """Print the error of a command to stderr, and return the exit code.

    A ConfigError is printed as a line for each problem, an error with an ``exit_code`` as its
    message, and any other with the user's part of its traceback, if there is one; the run's log has
    the whole traceback. A note, such as how to resume the run, comes last.
    """
    from rlrun.config.problems import ConfigError, user_traceback

    if isinstance(error, ConfigError):
        report_problems(error.problems, style="red")
        count = len(error.problems)
        _print((f"{count} problem{'s' if count != 1 else ''}", "bold red"))
        return INPUT_WRONG
    code: int = getattr(error, "exit_code", RUN_FAILED)
    notes, error.__notes__ = getattr(error, "__notes__", []), []
    if code == INPUT_WRONG:
        _print(("\n".join([str(error), *notes]), "red"))
        return code
    # The text of an error with an exit code starts with the traceback of the user's code; rlrun's
    # frames would not help.
    is_explained = hasattr(error, "exit_code")
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        parts = (error.filename, error.strerror or str(error))
        refusal = ": ".join(str(part) for part in parts if part)
        _print(("\n".join([refusal, *notes[-1:]]), "red"))
        return code
    sys.stderr.write(f"{error}\n" if is_explained else user_traceback(error))
    _print((notes[-1] if notes else f"failed: {type(error).__name__}", "red"))
    return code


def report_problems(problems: "Iterable[Problem]", *, style: str, prefix: str = "") -> None:
    """Print problems to stderr, each on one unwrapped line."""
    for problem in problems:
        origin, key = str(problem.origin), problem.key
        _print(
            (prefix, style),
            (f"{origin}: " if origin else "", "dim"),
            (f"{key}: " if key else "", "bold"),
            (problem.message, style),
        )


def _print(*parts: tuple[str, str]) -> None:
    """Print texts, each in its style, as one; a run folder's texts cannot steer the terminal."""
    from rich.console import Console
    from rich.text import Text

    from rlrun.experiment.report.tables import printable

    text = Text.assemble(*((printable(part), style) for part, style in parts))
    Console(stderr=True, highlight=False).print(text, soft_wrap=True)
