"""The run folder: one self-contained place for everything that comes of a run.

Owns names, creation, the lock and ``meta.json``. It must not know how a run goes.

===================  =========================================================
config.yaml          the resolved experiment, itself a valid experiment file
meta.json            versions, git commit, argv, host, sessions and outcome
metrics.jsonl        one result a line
checkpoints/         see checkpoint_folder.py
log.txt              what was logged, Python warnings included
videos/ tensorboard/ made by those who fill them
===================  =========================================================

The environment variables are never written: they hold people's keys.
"""

import fcntl
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from rlrun.checkpoint.checkpoint import MANIFEST
from rlrun.checkpoint.checkpoint_folder import LATEST
from rlrun.checkpoint.files import replace_link, replace_text

SWEEP_CONFIG = "sweep.yaml"
"""The file that makes a folder a sweep's (sweep_folder.py)."""

_VERSIONS_OF = ("rlrun", "gymnasium", "numpy", "pydantic", "ray", "safetensors", "torch")
_GIT_TIMEOUT_S = 2.0


class RunFolderError(Exception):
    """A run folder cannot be used as asked; the message says what to do instead."""

    exit_code = 2


class RunFolder:
    """Paths of one run folder; ``create`` or ``open`` give one that is locked for this process."""

    CONFIG: ClassVar[str] = "config.yaml"
    """The file that makes a folder one of this kind."""
    RESUME: ClassVar[str] = "rlrun train --resume"
    """The command that goes on with one."""
    SUFFIX: ClassVar[str] = "s"
    """What stands between time and seed in the folder's name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / self.CONFIG
        self.meta = path / "meta.json"
        self.metrics = path / "metrics.jsonl"
        self.log = path / "log.txt"
        self.checkpoints = path / "checkpoints"
        self.videos = path / "videos"
        self.tensorboard = path / "tensorboard"
        self._lock: IO[str] | None = None

    @classmethod
    def create(cls, name: str, seed: int, *, root: Path = Path("runs")) -> Self:
        """Make ``root/name/<date>-<time>-s<seed>`` and point ``root/name/latest`` at it."""
        stem = f"{datetime.now():%Y%m%d-%H%M%S}-{cls.SUFFIX}{seed}"
        for candidate in _numbered(stem):
            path = root / name / candidate
            try:
                path.mkdir(parents=True, exist_ok=False)
            except FileExistsError:
                continue
            except OSError as error:
                raise RunFolderError(f"{path}: cannot be made: {error.strerror}") from error
            replace_link(root / name / LATEST, candidate)
            break
        folder = cls(path)
        folder._acquire()
        return folder

    @classmethod
    def create_at(cls, path: Path) -> Self:
        """Use exactly ``path``, which must be missing or empty."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            occupied = any(path.iterdir())
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be made: {error.strerror}") from error
        folder = cls(path)
        if occupied:
            way_out = (
                f"go on with it by `{cls.RESUME} {path}`, or name another folder"
                if folder.config.exists()
                else "name a new folder"
            )
            raise RunFolderError(f"{path}: the folder is not empty: {way_out}")
        folder._acquire()
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Lock an existing run, to go on with it; ``runs/<name>`` stands for its ``latest``."""
        path = resolve_run(path, cls.CONFIG)
        folder = cls(path)
        folder._acquire()
        return folder

    def _acquire(self) -> None:
        """Keep a second process out for as long as this one lives, however it ends."""
        lock = (self.path / ".lock").open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RunFolderError(
                f"{self.path}: another process is running in this folder"
            ) from None
        except OSError:
            # Some network file systems have no locks; a run must be possible there too.
            pass
        self._lock = lock

    def close(self) -> None:
        """Let other processes have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def discard(self) -> None:
        """Remove the folder of a run that never began, so that its name can be used again."""
        shutil.rmtree(self.path, ignore_errors=True)
        link = self.path.parent / LATEST
        if link.is_symlink() and not link.exists():
            link.unlink()

    def read_meta(self) -> dict[str, Any]:
        """What meta.json says; empty if it is missing or damaged, since nothing depends on it."""
        with suppress(OSError, ValueError):
            return dict(json.loads(self.meta.read_text()))
        return {}

    def begin_session(self, *, resumed_from: int | None, overrides: Iterable[str]) -> None:
        """Note in meta.json that a process works on this run now."""
        meta = self.read_meta() or {"created": _now(), "sessions": []}
        session = {
            "started": _now(),
            "ended": None,
            "outcome": "running",
            "reason": None,
            "resumed_from_iteration": resumed_from,
            "overrides": list(overrides),
            "argv": sys.argv,
            "cwd": os.getcwd(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "cpus": os.cpu_count(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "versions": dict(_versions()),
            "git": _git(),
        }
        meta |= {"outcome": "running", "sessions": [*meta.get("sessions", []), session]}
        self._write_meta(meta)

    def end_session(self, outcome: str, reason: str, iteration: int | None) -> None:
        """Note how it ended: "finished", "interrupted" or "failed", and why."""
        meta = self.read_meta()
        if meta.get("sessions"):
            meta["sessions"][-1] |= {"ended": _now(), "outcome": outcome, "reason": reason}
        self._write_meta(meta | {"outcome": outcome, "training_iteration": iteration})

    def _write_meta(self, meta: dict[str, Any]) -> None:
        replace_text(self.meta, json.dumps(meta, indent=2) + "\n")


def resolve_run(path: Path, config: str = RunFolder.CONFIG) -> Path:
    """The run folder that ``path`` stands for: itself, or the ``latest`` of ``runs/<name>``."""
    if (path / MANIFEST).is_file():
        raise RunFolderError(f"{path}: a checkpoint; name the run folder that it lies in")
    if (path / config).is_file():
        return path
    if (path / LATEST / config).is_file():
        latest = path / LATEST
        return path / latest.readlink() if latest.is_symlink() else latest
    if not path.exists():
        raise RunFolderError(f"{path}: no such run folder")
    for sweep in (path, path / LATEST):
        if (sweep / SWEEP_CONFIG).is_file():
            raise RunFolderError(f"{path}: a sweep; name one of its trials, in {sweep / 'trials'}")
    raise RunFolderError(f"{path}: not a run folder: it has no {config}")


def is_in_use(path: Path) -> bool:
    """Whether a process, this one included, has the run folder at ``path`` open."""
    try:
        with (path / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # No such folder yet, or a file system without locks.
    return False


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _versions() -> Iterator[tuple[str, str]]:
    for name in _VERSIONS_OF:
        with suppress(metadata.PackageNotFoundError):
            yield name, metadata.version(name)


def _git() -> dict[str, Any] | None:
    """Commit of the code in the working directory, and whether it was changed since."""
    try:
        commit = _run_git("rev-parse", "HEAD")
        changed = _run_git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "changed": bool(changed)}


def _run_git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True, timeout=_GIT_TIMEOUT_S
    )
    return done.stdout.strip()
