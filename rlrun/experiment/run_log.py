"""``log.txt``: what is logged while a run goes, Python's warnings included.

Owns the logging handlers of a run. It must not know what is logged. Warnings of rlrun's own also
reach the console; everything else stays in the file, so that a default run says nothing odd.
"""

import logging
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class RunLog:
    """Context manager: logs to ``path`` inside the block; rlrun's warnings also go to ``notice``.

    ``notice`` may be exchanged on the way, once there is a console.
    """

    def __init__(self, path: Path, notice: Callable[[str], None]) -> None:
        self.notice = notice
        self._path = path
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        to_file = _QuietFileHandler(self._path, encoding="utf-8", delay=True)
        to_file.setFormatter(logging.Formatter(_FORMAT))
        self._stack.callback(to_file.close)
        own, of_python = logging.getLogger("rlrun"), logging.getLogger("py.warnings")
        for logger, handler in (
            (own, to_file),
            (own, _NoticeHandler(self)),
            (of_python, to_file),
        ):
            logger.addHandler(handler)
            self._stack.callback(logger.removeHandler, handler)
        self._stack.callback(own.setLevel, own.level)
        own.setLevel(logging.INFO)
        self._stack.callback(setattr, of_python, "propagate", of_python.propagate)
        of_python.propagate = False
        self._stack.callback(setattr, warnings, "showwarning", warnings.showwarning)
        logging.captureWarnings(True)
        self._stack.callback(logging.captureWarnings, False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


class _QuietFileHandler(logging.FileHandler):
    """A full disk must not fill the terminal with tracebacks of the logging module."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Drop the record."""


class _NoticeHandler(logging.Handler):
    def __init__(self, run_log: RunLog) -> None:
        super().__init__(logging.WARNING)
        self._run_log = run_log

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:  # an error ends the run, which then says so itself
            self._run_log.notice(record.getMessage())
