"""``log.txt``: what is logged while a run goes, Python's warnings included.

Owns the logging handlers of a run. It must not know what is logged. Warnings of rlrun's own also
reach the console; everything else stays in the file, so that a default run says nothing odd.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@contextmanager
def run_log(path: Path, notice: Callable[[str], None]) -> Iterator[None]:
    """Log to ``path`` inside the block; rlrun's warnings also go to ``notice``."""
    to_file = _QuietFileHandler(path, encoding="utf-8", delay=True)
    to_file.setFormatter(logging.Formatter(_FORMAT))
    to_console = _NoticeHandler(notice)
    own, of_python = logging.getLogger("rlrun"), logging.getLogger("py.warnings")
    level, propagated = own.level, of_python.propagate
    shown = warnings.showwarning
    own.addHandler(to_file)
    own.addHandler(to_console)
    own.setLevel(logging.INFO)
    of_python.addHandler(to_file)
    of_python.propagate = False
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        warnings.showwarning = shown
        of_python.propagate = propagated
        of_python.removeHandler(to_file)
        own.setLevel(level)
        own.removeHandler(to_console)
        own.removeHandler(to_file)
        to_file.close()


class _QuietFileHandler(logging.FileHandler):
    """A full disk must not fill the terminal with tracebacks of the logging module."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Drop the record."""


class _NoticeHandler(logging.Handler):
    def __init__(self, notice: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._notice = notice

    def emit(self, record: logging.LogRecord) -> None:
        self._notice(record.getMessage())
