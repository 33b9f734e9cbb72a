"""How a failed run is said: what the user's own code did first, then one line, then the exit code.

Owns the order and the codes for commands that run something. It must not know what they run.
"""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from rlrun.cli import errors


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what a run raises into text on stderr and an exit code.

    ConfigError passes through: ``main`` prints those of all commands. An error class with an
    ``exit_code`` carries a message for people; any other is a failure with its whole traceback.
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
        # Its text begins with the user's own traceback; rlrun's frames say nothing about it.
        sys.stderr.write(f"{error}\n")
        errors.fail(_last_line(error), errors.RUN_FAILED)
    except ImportPathError as error:
        errors.fail(str(error), errors.INPUT_WRONG)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if isinstance(code, int):
            errors.fail(str(error), code)
        notes, error.__notes__ = getattr(error, "__notes__", []), []
        sys.stderr.write("".join(traceback.format_exception(error)))
        error.__notes__ = notes
        errors.fail(_last_line(error), errors.RUN_FAILED)


def _last_line(error: Exception) -> str:
    notes = getattr(error, "__notes__", [])
    return str(notes[-1]) if notes else f"failed: {type(error).__name__}"
