"""Entries of the run index as text and JSON: the list, one run, two runs, disk use, rows.

Owns the words and columns. It must not know how entries are read.
"""

import shlex
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rlrun.checkpoint.checkpoint_folder import CHECKPOINTS, iterations_in
from rlrun.config.dump import flow
from rlrun.data.results import RETURN, Row, flat, number_at, plain_row
from rlrun.experiment.report.numbers import clock_time, number, rounded, size_text
from rlrun.experiment.report.tables import Cells, Table
from rlrun.experiment.run_index import RunEntry
from rlrun.experiment.session import last_session, sessions_of

_STYLES = {
    "running": "cyan",
    "finished": "green",
    "interrupted": "yellow",
    "killed": "yellow",
    "failed": "red",
    "damaged": "red",
}
_COMPARED = (
    "training_iteration",
    "env_steps",
    "time_s",
    "env_steps_per_s",
    RETURN,
    f"evaluation/{RETURN}",
)
TAIL_COLUMNS = {
    "iteration": "training_iteration",
    "env steps": "env_steps",
    "return": RETURN,
    "length": "episode_len_mean",
    "steps/s": "env_steps_per_s",
    "time": "time_s",
}
"""Heading -> key of the results."""

SORT_KEYS: dict[str, Callable[[RunEntry], Any]] = {
    "age": lambda entry: -entry.created.timestamp(),
    "name": lambda entry: str(entry.path),
    "state": lambda entry: entry.state,
    "progress": lambda entry: -(entry.progress or 0.0),
    "best": lambda entry: float("inf") if entry.best is None else -entry.best,
    "size": lambda entry: -sum(entry.sizes().values()),
}
"""Sort keys of the list; the newest, the furthest, the best and the largest come first."""


def list_table(
    entries: Iterable[RunEntry], home: Path, of_members: Mapping[str, str] | None = None
) -> Table:
    """A row for each run or sweep, named relative to ``home``.

    Args:
        of_members: filters of the members that also get a row; none if it is None.
    """
    heads = ("run", "state", "done", "best", "size", "age")
    rows = []
    for entry in entries:
        rows.append(_row(entry, _name(entry.path, home)))
        if of_members is not None:
            rows += [
                _row(member, f"  {_name(member.path, entry.path)}")
                for member in entry.members_like(of_members)
            ]
    return Table(heads, rows, heads[2:])


def _row(entry: RunEntry, name: str) -> Cells:
    return (
        name,
        entry.state + (f" ({len(entry.members)})" if entry.is_sweep else ""),
        "-" if entry.progress is None else f"{entry.progress:.0%}",
        rounded(entry.best, "-"),
        size_text(sum(entry.sizes().values())),
        _age(entry.created),
    )


def style_of(row: Cells) -> str | None:
    """The style of a row of the list."""
    return _STYLES.get(row[1].partition(" ")[0])


def _name(path: Path, home: Path) -> str:
    return str(path.relative_to(home)) if path.is_relative_to(home) and path != home else str(path)


def _age(created: datetime) -> str:
    seconds = max(0.0, (datetime.now().astimezone() - created).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"


def to_json(
    entry: RunEntry, of_members: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """A run or sweep as plain values, for JSON, with its members that match the filters."""
    return {
        "path": str(entry.path),
        "kind": "sweep" if entry.is_sweep else "run",
        "state": entry.state,
        "reason": entry.reason,
        "created": entry.created.isoformat(timespec="seconds"),
        "algorithm": entry.settings.get("algorithm"),
        "env": entry.settings.get("env", {}).get("use"),
        "seed": entry.settings.get("seed"),
        "progress": entry.progress,
        "metric": entry.metric,
        "best": entry.best,
        "size_bytes": sum(entry.sizes().values()),
        "last": entry.last or None,
        "members": [to_json(member) for member in entry.members_like(of_members)],
    }


def show_lines(entry: RunEntry) -> list[str]:
    """The facts about a run or sweep as lines, each with a name and a text."""
    lines = [str(entry.path)]
    for name, text in _facts(entry):
        is_command = name in ("command", "resumed")  # which stays on one line, so it can be pasted
        parts = [text] if is_command else textwrap.wrap(text, 66, break_long_words=False)
        lines += [f"  {head:<12}{part}" for head, part in zip_longest([name], parts, fillvalue="")]
    if entry.members:
        lines += ["", *list_table(entry.members, entry.path).plain_lines()]
    return lines


def _facts(entry: RunEntry) -> Iterator[tuple[str, str]]:
    settings, last, sessions = entry.settings, entry.last, sessions_of(entry.meta)
    if settings:
        what = "a sweep of " if entry.is_sweep else ""
        env = settings["env"]["use"]
        yield "trains", f"{what}{settings['algorithm']} on {env}, seed {settings.get('seed')}"
    yield "state", entry.state + (f": {entry.reason}" if entry.reason else "")
    if entry.progress is not None:
        yield "done", f"{entry.progress:.0%}"
    plural = "s" if len(sessions) != 1 else ""
    yield "created", f"{entry.created:%Y-%m-%d %H:%M}, {len(sessions)} session{plural}"
    if last:
        steps, time_s = number_at(last, "env_steps") or 0, number_at(last, "time_s") or 0
        yield "trained", f"{number(steps)} env steps, {clock_time(time_s)}"
        yield "return", f"{rounded(number_at(last, RETURN), '-')} in the last result"
    if (evaluated := number_at(last, f"evaluation/{RETURN}")) is not None:
        yield "evaluation", rounded(evaluated)
    if entry.best is not None:
        yield "best", f"{rounded(entry.best, '-')} ({entry.metric})"
    if not entry.is_sweep:
        yield "checkpoints", ", ".join(_checkpoints(entry.path)) or "none"
    sizes = sorted(entry.sizes().items(), key=lambda each: -each[1])
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in sizes[:3] if size)
    yield "size", size_text(sum(size for _, size in sizes)) + (f": {parts}" if parts else "")
    if sessions:
        yield "command", _command(sessions[0])
    if len(sessions) > 1:
        yield "resumed", _command(sessions[-1])
    for session in sessions[-1:]:
        yield "machine", f"{session.get('host')}, {session.get('cpus')} CPUs"
        yield "code", _code(session)


def _command(session: Mapping[str, Any]) -> str:
    words = list(map(str, session.get("argv") or []))
    return shlex.join(["rlrun", *words[1:]])


def _code(session: Mapping[str, Any]) -> str:
    version = (session.get("versions") or {}).get("rlrun")
    git = session.get("git") or {}
    changed = ", changed since" if git.get("changed") else ""
    return f"rlrun {version}" + (f", commit {git['commit'][:12]}{changed}" if git else "")


def _checkpoints(path: Path) -> Iterator[str]:
    home = path / CHECKPOINTS
    best = home / "best"
    linked = best.readlink().name if best.is_symlink() else None
    for iteration in iterations_in(home):
        name = f"{iteration:06d}"
        yield f"{name} (best)" if name == linked else name


def differences(left: RunEntry, right: RunEntry) -> dict[str, dict[str, list[Any]]]:
    """``settings`` and ``code`` that differ, and ``results``: by name the two values."""
    settings = [flat(entry.settings, ".") for entry in (left, right)]
    code = [flat(_session_code(entry), ".") for entry in (left, right)]
    results = [_results(entry) for entry in (left, right)]
    either = {key: [each.get(key) for each in results] for key in results[0] | results[1]}
    found = {"settings": _unequal(*settings), "code": _unequal(*code), "results": either}
    return plain_row(found)


def _unequal(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, list[Any]]:
    keys = [key for key in {**left, **right} if left.get(key) != right.get(key)]
    return {key: [left.get(key), right.get(key)] for key in keys}


def _session_code(entry: RunEntry) -> dict[str, Any]:
    session = last_session(entry.meta)
    versions = session.get("versions") or {}
    return {**versions, "python": session.get("python"), "git": session.get("git") or {}}


def _results(entry: RunEntry) -> dict[str, float | str | None]:
    numbers = {key: number_at(entry.last, key) for key in _COMPARED}
    known = {key: value for key, value in numbers.items() if value is not None}
    return {"state": entry.state, **known, f"best {entry.metric}": entry.best}


def difference_lines(left: RunEntry, right: RunEntry) -> list[str]:
    """Two runs side by side: what differs in their settings and code, and their results."""
    found = differences(left, right)
    lines = [f"A  {left.path}", f"B  {right.path}"]
    for part in ("settings", "code", "results"):
        text_of = _result if part == "results" else flow
        rows = [(key, *map(text_of, pair)) for key, pair in found[part].items()]
        if rows:
            lines += ["", *Table((part, "A", "B"), rows, ("A", "B")).plain_lines()]
        else:
            lines += ["", f"{part}: equal"]
    return lines


def _result(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    return number(value) if value == int(value) else rounded(value)  # all digits of a count


def usage_table(entries: Iterable[RunEntry], home: Path) -> Table:
    """Disk use of each run or sweep by kind of file, the largest first, and the sum."""
    heads = ("run", "checkpoints", "videos", "metrics", "other", "all")
    sums = [0] * 5
    rows = []
    for entry in entries:
        sizes = _sum_of_sizes(entry)
        rows.append((sizes, _name(entry.path, home)))
        sums = [total + size for total, size in zip(sums, sizes, strict=True)]
    rows.sort(key=lambda row: -row[0][-1])
    cells = [(name, *map(size_text, sizes)) for sizes, name in [*rows, (sums, "all")]]
    return Table(heads, cells, heads[1:])


def _sum_of_sizes(entry: RunEntry) -> list[int]:
    """Bytes of checkpoints, videos, metrics and the rest, and their sum, members included."""
    sizes = [each.sizes() for each in (entry, *entry.members)]
    whole = sum(sizes[0].values())
    names = (CHECKPOINTS, "videos", "metrics.jsonl")
    parts = [sum(each.get(name, 0) for each in sizes) for name in names]
    return [*parts, whole - sum(parts), whole]


class RowLines:
    """Rows of a run as lines of a table with columns of fixed width."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        last = {key: key.rpartition("/")[2] for key in keys}
        taken = [*TAIL_COLUMNS, *last.values()]
        names = {name if taken.count(name) == 1 else key: key for key, name in last.items()}
        self._keys = {**TAIL_COLUMNS, **names}
        self._widths = [max(10, len(name)) for name in self._keys]

    def heading(self) -> str:
        """The names of the columns."""
        return self._line(self._keys)

    def line(self, row: Row) -> str:
        """One row."""
        return self._line(self._text(row, key) for key in self._keys.values())

    def _text(self, row: Row, key: str) -> str:
        value = number_at(row, key)
        if key == "time_s" and value is not None:
            return clock_time(value)
        return "-" if value is None else number(float(f"{value:.7g}"))

    def _line(self, cells: Iterable[str]) -> str:
        texts = (text.rjust(width) for text, width in zip(cells, self._widths, strict=True))
        return "  ".join(texts)
