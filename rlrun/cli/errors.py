"""How a command ends: exit codes, and wrong input said in full.

Owns: the exit codes of all commands and the form of complaints on the terminal. Must not know: what
any command does.
"""

from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from rlrun.config.problems import ConfigError, Problem

FINISHED = 0
RUN_FAILED = 1
INPUT_WRONG = 2
INTERRUPTED = 130


def report_config_error(error: "ConfigError") -> None:
    """Print every problem of a config on its own line, and how many there are."""
    report_problems(error.problems, style="red")
    count = len(error.problems)
    _console().print(f"{count} problem{'s' if count != 1 else ''}", style="bold red")


def report_problems(problems: "Iterable[Problem]", *, style: str, prefix: str = "") -> None:
    """Print problems to stderr, each on one unwrapped line that tools can read."""
    from rich.text import Text

    for problem in problems:
        origin, key = str(problem.origin), problem.key
        line = Text.assemble(
            (prefix, style),
            (f"{origin}: ", "dim") if origin else "",
            (f"{key}: ", "bold") if key else "",
            (problem.message, style),
        )
        _console().print(line, soft_wrap=True)


def fail(message: str, code: int = INPUT_WRONG) -> NoReturn:
    """Print one line to stderr and end with an exit code."""
    from rich.text import Text

    _console().print(Text(message, style="red"), soft_wrap=True)
    raise SystemExit(code)


def _console() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False)
