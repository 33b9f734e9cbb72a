"""Sinks: objects that receive the result of every iteration, all of them the same dict.

Owns their interface, how they are made, and ``metrics.jsonl``: only whole lines, each with all keys
of the lines before it, and its repair when a run is resumed. It must not know which numbers a
result holds.
"""

import inspect
import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from rlrun.checkpoint.files import replace_text
from rlrun.config.problems import InputError
from rlrun.config.registry import BUILT_IN_SINKS, LOGGERS, import_object
from rlrun.config.schema import UseSpec
from rlrun.data.results import (
    Row,
    addresses,
    comes_later,
    is_by_name,
    plain_row,
    with_keys_of,
    with_later_keys,
)
from rlrun.experiment.run_folder import RunFolder

log = logging.getLogger(__name__)


MOST_WAITING_BYTES = 16 * 2**20
"""Size of the lines that are kept in memory while the disk is full."""


class DiskRefusedError(InputError):
    """The disk has been full for too long; the run ends."""

    exit_code = 1


class JsonlSink:
    """Appends results; when ``write`` returns, the whole line is in the file.

    If the disk is full, ``write`` raises OSError, no half line is left, and the next ``write`` or
    ``close`` tries again. Once too many lines wait, ``write`` raises DiskRefusedError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        rows = read_rows(path)
        self._template = next(rows, None)
        self._known = set[str]()
        if self._template is not None:
            for last in deque(rows, maxlen=1):  # it has all keys of earlier rows
                self._template = with_later_keys(self._template, last)
            self._known = set(addresses(self._template))
        self._file = path.open("a+b", buffering=0)
        self._pending: list[bytes] = []

    def write(self, result: dict[str, Any]) -> None:
        """Append one result."""
        row = plain_row(result)
        if self._template is None:
            self._template = row
            self._known = set(addresses(row))
        row = with_keys_of(self._template, row)
        if new := set(addresses(row)) - self._known:
            self._note_new_keys(new)
            self._template = with_later_keys(self._template, row)
        self._pending.append(json_line(row))
        self._flush()

    def finish(self) -> None:
        """Write the pending lines; raise DiskRefusedError if they still cannot be written."""
        try:
            self._flush()
        except OSError as error:
            raise DiskRefusedError(
                f"{self._path}: the last {len(self._pending):,} results are lost: {error.strerror}"
            ) from None

    def content(self) -> bytes:
        """All lines, including pending ones, even if the file has been removed."""
        descriptor = self._file.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0) + b"".join(self._pending)

    def close(self) -> None:
        """Write the pending lines and close the file."""
        try:
            self._flush()
        finally:
            self._file.close()

    def _flush(self) -> None:
        descriptor = self._file.fileno()
        end = os.fstat(descriptor).st_size
        data = memoryview(b"".join(self._pending))
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:
            os.ftruncate(descriptor, end)  # no half line
            if sum(map(len, self._pending)) > MOST_WAITING_BYTES:
                raise DiskRefusedError(
                    f"{self._path}: the last {len(self._pending):,} results could not be written, "
                    "more than are kept in memory"
                ) from None
            raise
        self._pending.clear()

    def _note_new_keys(self, new: set[str]) -> None:
        self._known |= new
        late = [name for name in new if not (is_by_name(name) or comes_later(name))]
        if late:
            log.warning(
                "metrics.jsonl: new keys from this line on: %s; a result should have all its keys "
                "from the first iteration, with None for missing numbers",
                ", ".join(sorted(late)),
            )


def json_line(row: Row) -> bytes:
    """One line of metrics.jsonl; floats as ``repr``, so that reading gives the same bits."""
    return json.dumps(row, allow_nan=False).encode() + b"\n"


def repair(path: Path, last: Row | None, *, whole: bool = True) -> None:
    """Make the file end with ``last``, the row of the checkpoint that a run is resumed from.

    Later rows, damaged ones and half a line are dropped; ``last`` is added if the run was killed
    before it was written. None empties the file.

    Args:
        whole: the rows before ``last`` were written; log a warning if some are missing.
    """
    kept: list[Row] = []
    if last is not None:
        iteration = last["training_iteration"]
        kept = [row for row in read_rows(path) if row["training_iteration"] < iteration]
        reached = kept[-1]["training_iteration"] if kept else 0
        if whole and reached < iteration - 1:
            numbers = reached + 1, iteration - 1
            log.warning("%s: the results of iterations %d to %d are missing", path, *numbers)
        kept.append(with_keys_of(with_later_keys(kept[0], kept[-1]), last) if kept else last)
    replace_text(path, b"".join(map(json_line, kept)).decode())


def read_rows(path: Path, *, warn: bool = True) -> Iterator[Row]:
    """The valid rows of a metrics.jsonl, without half a line that a kill may leave at the end.

    Args:
        warn: log a warning with the number of the first damaged line.
    """
    if not path.exists():
        return
    damaged: list[int] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            row = _row(line)
            if row is not None:
                yield row
            else:
                damaged.append(number)
    if damaged and warn:
        more = f", as are {len(damaged) - 1:,} more" if len(damaged) > 1 else ""
        log.warning("%s:%d: the line is damaged and skipped%s", path, damaged[0], more)


def follow_rows(
    path: Path, is_live: Callable[[], bool], *, last: int, pause_s: float = 0.5
) -> Iterator[Row]:
    """The last rows of a metrics.jsonl, then each that is added while the run is live."""
    start, most = 0, last
    while True:
        goes_on = is_live()  # first, as a run writes its last rows before it ends
        rows, start = _rows_from(path, start, most)
        yield from rows
        if not goes_on:
            return
        most = sys.maxsize
        time.sleep(pause_s)


def _rows_from(path: Path, start: int, most: int) -> tuple[list[Row], int]:
    """The good rows after so many bytes, of the last ``most`` lines; the end of the last line."""
    if not path.exists():
        return [], start
    lines: deque[bytes] = deque(maxlen=most)
    with path.open("rb") as file:
        # A resumed run drops the rows after its checkpoint.
        start = file.seek(min(start, os.fstat(file.fileno()).st_size))
        for line in file:
            if line.endswith(b"\n"):
                lines.append(line)
                start += len(line)
    return [row for row in map(_row, lines) if row is not None], start


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _row(line: bytes) -> Row | None:
    """The row of a line; None if it is damaged."""
    try:
        row = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    is_row = isinstance(row, dict) and isinstance(row.get("training_iteration"), int)
    return row if is_row else None


CONSOLE = "console"


class Sink(Protocol):
    """The interface of the sinks in ``report.sinks``."""

    def write(self, result: dict[str, Any], /) -> None:
        """Receive one iteration's result; it is shared and must not be changed."""

    def close(self) -> None:
        """Release everything: the run has ended, for whatever reason."""


def make_sinks(specs: Iterable[UseSpec], folder: RunFolder) -> list[Sink]:
    """Make the sinks of ``report.sinks``, except the console; JSONL comes first, named or not.

    Each is made with its arguments from the file, and with the path of the run folder if it has a
    parameter ``run_dir``.
    """
    others = [_make_sink(spec, folder) for spec in specs if spec.use not in BUILT_IN_SINKS]
    return [JsonlSink(folder.metrics), *others]


def _make_sink(spec: UseSpec, folder: RunFolder) -> Sink:
    factory = import_object(LOGGERS.get(spec.use, spec.use))
    arguments = spec.arguments()
    if "run_dir" in inspect.signature(factory).parameters:
        arguments.setdefault("run_dir", folder.home)
    sink: Sink = factory(**arguments)
    for method in ("write", "close"):
        if not callable(getattr(sink, method, None)):
            raise InputError(f"report.sinks: {spec.use}: a sink needs a method {method}()")
    return sink
