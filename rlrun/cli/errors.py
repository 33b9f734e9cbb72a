"""How a command ends: exit codes and error messages.

Owns the exit codes of all commands and the form of errors on the terminal. It must not know what a
command does.
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
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
    """Print every problem of a config on a line of its own, and their number."""
    report_problems(error.problems, style="red")
    count = len(error.problems)
    _console().print(f"{count} problem{'s' if count != 1 else ''}", style="bold red")


def report_problems(problems: "Iterable[Problem]", *, style: str, prefix: str = "") -> None:
    """Print problems to stderr, each on one unwrapped line."""
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
    """Print a message to stderr and exit."""
    from rich.text import Text

    _console().print(Text(message, style="red"), soft_wrap=True)
    raise SystemExit(code)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the errors of a run into text on stderr and an exit code.

    Errors with an ``exit_code`` are printed as their message, others with their traceback.
    ConfigError passes through, to be printed by ``main``.
    """
    from rlrun.config.problems import ConfigError
    from rlrun.config.registry import ImportPathError
    from rlrun.connectors.errors import ConnectorError
    from rlrun.envs.errors import EnvError

    try:
        yield
    except (ConfigError, KeyboardInterrupt, SystemExit):
        raise
    except (EnvError, ConnectorError) as error:
        # Its text starts with the traceback of the user's code; rlrun's frames would not help.
        sys.stderr.write(f"{error}\n")
        fail(_last_line(error), RUN_FAILED)
    except ImportPathError as error:
        fail(str(error), INPUT_WRONG)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if isinstance(code, int):
            fail("\n".join([str(error), *getattr(error, "__notes__", [])]), code)
        notes, error.__notes__ = getattr(error, "__notes__", []), []
        sys.stderr.write("".join(traceback.format_exception(error)))
        error.__notes__ = notes
        fail(_last_line(error), RUN_FAILED)


def _last_line(error: Exception) -> str:
    notes = getattr(error, "__notes__", [])
    return str(notes[-1]) if notes else f"failed: {type(error).__name__}"


def _console() -> "Console":
    from rich.console import Console

    return Console(stderr=True, highlight=False)
