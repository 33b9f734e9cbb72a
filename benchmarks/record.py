"""A benchmark's JSON file: settings, machine, and every single measurement, written as it comes.

The file is the run: tables are made from it, and `--resume` continues it. Medians and
ratios are computed when a table is made, so that only raw numbers are stored.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import machine

RESULTS = Path(__file__).resolve().parent / "results"


class RecordError(Exception):
    """The results file cannot be used for this run; the message says what to do."""


@dataclass
class Record:
    """All measurements of one benchmark: `{"contender", "round", "load", "result" | "error"}`."""

    path: Path
    benchmark: str
    settings: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=machine.describe)
    sessions: int = 1
    measurements: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        benchmark: str,
        settings: dict[str, Any],
        *,
        path: Path | None,
        resume: bool,
        anywhere: bool = False,
    ) -> "Record":
        """A new record, or with `resume` the stored one without its failures, to continue.

        Raises `RecordError` where the stored one was made with other settings or elsewhere; it may
        go on `anywhere` if it holds nothing that depends on the machine.
        """
        path = path or RESULTS / f"{benchmark}.json"
        fresh = cls(path, benchmark, settings)
        if not (resume and path.exists()):
            return fresh
        stored = cls.load(path)
        for name in ("settings",) if anywhere else ("settings", "machine"):
            was, now = getattr(stored, name), getattr(fresh, name)
            differences = [key for key in now if key != "date" and was.get(key) != now[key]]
            if differences:
                raise RecordError(
                    f"{path} has other {name} ({', '.join(differences)}): "
                    "give the same options, or start anew without --resume"
                )
        stored.sessions += 1
        stored.measurements = [entry for entry in stored.measurements if "result" in entry]
        return stored

    @classmethod
    def load(cls, path: Path) -> "Record":
        """The record in a file."""
        return cls(path, **json.loads(path.read_text()))

    def save(self) -> None:
        """Writes the file whole or not at all: a run may be interrupted at any time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {name: value for name, value in vars(self).items() if name != "path"}
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        os.replace(temporary, self.path)

    def add(self, contender: str, round_: int, **outcome: Any) -> None:
        """Stores one measurement (`result=` or `error=`) at once."""
        self.measurements.append({"contender": contender, "round": round_, **outcome})
        self.save()

    def has(self, contender: str, round_: int) -> bool:
        """Whether this contender was measured in this round."""
        return any(
            entry["contender"] == contender and entry["round"] == round_
            for entry in self.measurements
        )

    @property
    def contenders(self) -> list[str]:
        """Names of the contenders in the order of their first measurement."""
        return list(dict.fromkeys(entry["contender"] for entry in self.measurements))

    def values(self, contender: str, key: str) -> dict[int, float]:
        """Round -> the number at `key` (`a/b` for nesting) in the contender's results."""
        found: dict[int, float] = {}
        for entry in self.measurements:
            if entry["contender"] != contender or "result" not in entry:
                continue
            value: Any = entry["result"]
            for part in key.split("/"):
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                found[entry["round"]] = value
        return found

    def errors(self) -> dict[str, str]:
        """Contender -> its last error."""
        return {e["contender"]: e["error"] for e in self.measurements if "error" in e}

    def versions(self) -> dict[str, dict[str, str]]:
        """Contender -> the versions its driver reported."""
        return {
            e["contender"]: e["result"]["versions"]
            for e in self.measurements
            if "versions" in e.get("result", {})
        }
