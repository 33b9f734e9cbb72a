"""The log of a run: ``log.txt``, with log lines and Python warnings.

Owns what is written into it, and what is also shown on the console. It must not know run folders.
"""

import logging
import re
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OWN_WARNING = re.compile(r"^[\d-]+ [\d:,]+ WARNING rlrun[\w.]*: (.*)", re.MULTILINE)


class RunLog(ExitStack):
    """Context manager: log lines and Python warnings go to ``path``, a run folder's log.txt.

    Warnings of rlrun's own are also passed to ``notice``, which can be replaced at any time.
    """

    def __init__(self, path: Path, notice: Callable[[str], None]) -> None:
        super().__init__()
        self.notice, self._path = notice, path

    def __enter__(self) -> Self:
        to_file = _QuietFileHandler(self._path, encoding="utf-8", delay=True)
        to_file.setFormatter(logging.Formatter(_LOG_FORMAT))
        self.callback(to_file.close)
        own, python = logging.getLogger("rlrun"), logging.getLogger("py.warnings")
        for logger, handler in ((own, to_file), (own, _NoticeHandler(self)), (python, to_file)):
            logger.addHandler(handler)
            self.callback(logger.removeHandler, handler)
        self.callback(own.setLevel, own.level)
        own.setLevel(logging.INFO)
        self.callback(setattr, python, "propagate", python.propagate)
        python.propagate = False
        self.callback(setattr, warnings, "showwarning", warnings.showwarning)
        logging.captureWarnings(True)
        self.callback(logging.captureWarnings, False)
        return self


def own_warnings(path: Path) -> list[str]:
    """First lines of the warnings of rlrun's own in a log; none if it cannot be read."""
    try:
        return _OWN_WARNING.findall(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []


class _QuietFileHandler(logging.FileHandler):
    """Says nothing if the disk is full: logging would print a traceback for each line."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Drop the record."""

    def close(self) -> None:
        """Close the file; what the disk refuses is dropped."""
        with suppress(OSError):
            super().close()


class _NoticeHandler(logging.Handler):
    def __init__(self, run_log: RunLog) -> None:
        super().__init__(logging.WARNING)
        self._run_log = run_log

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:  # an error ends the run, which then says so itself
            self._run_log.notice(f"warning: {record.getMessage()}")
