"""The run folder: everything that a run writes, in one place that can be moved.

Owns the names, the lock and ``meta.json``. It must not know the steps of a run.

===================  =========================================================
config.yaml          the resolved experiment, a valid experiment file
meta.json            sessions (see session.py) and outcome
metrics.jsonl        one result a line
checkpoints/         see checkpoint_folder.py
log.txt              see run_log.py
videos/ tensorboard/ only if used
===================  =========================================================
"""

import fcntl
import json
import logging
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from rlrun.checkpoint.checkpoint import MANIFEST, CheckpointWriteError
from rlrun.checkpoint.checkpoint_folder import CHECKPOINTS, LATEST
from rlrun.checkpoint.files import replace_link, replace_text
from rlrun.config.problems import InputError
from rlrun.config.registry import similar_folder
from rlrun.config.yaml_tree import parse_yaml
from rlrun.experiment.session import last_session, new_session, now

RUNS = "runs"
"""The folder that runs are made in."""

SWEEP_CONFIG = "sweep.yaml"
"""The file that makes a folder a sweep's."""

_LOCK = ".lock"
_LOOK_S = 0.2  # processes that test whether a folder is in use lock it for less than this

_log = logging.getLogger(__name__)


class RunFolderError(InputError):
    """A folder cannot be used; the message says what to do instead."""


class RunInUseError(RunFolderError):
    """Another process is running in the folder."""


class FolderLostError(CheckpointWriteError):
    """The folder of a run has disappeared during the run, which ends."""

    is_lasting = True


class RunFolder:
    """The paths of one run folder; ``create``, ``create_at`` and ``open`` also lock it.

    Attributes:
        path: the folder as the user has named it, for messages.
        home: absolute path of the folder, valid after a change of the working directory.
        is_new: whether this process has created it.
    """

    CONFIG: ClassVar[str] = "config.yaml"
    """The file by which a folder of this kind is recognised."""
    KILLED: ClassVar[str] = (
        "its process was killed, or code in it exited; "
        "env_runners.gym_env_vectorize_mode=async gives environments their own"
    )
    RESUME: ClassVar[str] = "rlrun train --resume"
    """The command that resumes a folder."""
    SUFFIX: ClassVar[str] = "s"
    """Text between time and seed in the folder's name."""

    def __init__(self, path: Path) -> None:
        self.path, self.home = path, path.absolute()
        self.config = self.home / self.CONFIG
        self.meta = self.home / "meta.json"
        self.metrics = self.home / "metrics.jsonl"
        self.log = self.home / "log.txt"
        self.checkpoints = self.home / CHECKPOINTS
        self.videos = self.home / "videos"
        self.tensorboard = self.home / "tensorboard"
        self._lock: IO[str] | None = None
        self._directory: os.stat_result | None = None
        """The directory that is locked."""
        self._noted: dict[str, Any] = {}
        """Content of meta.json as this process has written it."""
        self.is_new = False
        self._earlier: dict[str, Any] = {}
        """Content of meta.json before the session."""

    @classmethod
    def create(cls, name: str, seed: int, *, at: Path | str | None = None) -> Self:
        """Make ``runs/name/<date>-<time>-s<seed>``, linked as ``latest``, or the folder ``at``."""
        if at is not None:
            return cls.create_at(Path(at))
        home = Path(RUNS) / name
        stem = f"{datetime.now():%Y%m%d-%H%M%S}-{cls.SUFFIX}{seed}"
        for number in count(1):
            candidate = stem if number == 1 else f"{stem}-{number}"
            path = home / candidate
            try:
                path.mkdir(parents=True, exist_ok=False)
            except FileExistsError:
                continue
            except OSError as error:
                raise RunFolderError(f"{path}: cannot be made: {error.strerror}") from error
            replace_link(home / LATEST, candidate)
            break
        return cls._made(path)

    @classmethod
    def create_at(cls, path: Path) -> Self:
        """Make the folder ``path``, which must be missing or empty."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            # A process that was killed at once leaves its lock alone.
            occupied = any(entry.name != _LOCK for entry in path.iterdir())
        except OSError as error:
            raise RunFolderError(f"{path}: cannot be made: {error.strerror}") from error
        folder = cls(path)
        if occupied:
            way_out = (
                f"resume it with `{cls.RESUME} {in_shell(path)}`, or name another folder"
                if folder.config.exists()
                else "name a new folder"
            )
            raise RunFolderError(f"{path}: the folder is not empty: {way_out}")
        return cls._made(path)

    @classmethod
    def branch(cls, checkpoint: Path, *, at: Path | str | None = None) -> Self:
        """Create a folder for a run that continues from one checkpoint, of another run or alone.

        It gets the settings of the checkpoint, and the results of the checkpoint's run.

        Raises:
            RunFolderError: the folder cannot be created.
        """
        checkpoint = checkpoint.resolve()  # before `latest` leads to the new folder
        settings, metrics = checkpoint / cls.CONFIG, checkpoint.parent.parent / "metrics.jsonl"
        plain = plain_settings(settings)
        folder = cls.create(plain["name"], plain["seed"], at=at)
        try:
            shutil.copytree(checkpoint, folder.checkpoints / checkpoint.name)
            shutil.copy(settings, folder.config)
            if checkpoint.parent.name == CHECKPOINTS and metrics.is_file():
                shutil.copy(metrics, folder.metrics)
        except OSError as error:
            folder.discard()
            raise RunFolderError(f"{folder.path}: cannot be written: {error}") from error
        return folder

    @classmethod
    def _made(cls, path: Path) -> Self:
        folder = cls(path)
        folder.is_new = True
        folder.lock()
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Lock an existing folder to resume it; ``runs/<name>`` stands for its ``latest``."""
        path = resolve_run(path, cls.CONFIG)
        refuse_links_out(path)
        folder = cls(path)
        folder.lock()
        return folder

    def lock(self) -> None:
        """Lock the folder until ``close`` or the end of the process.

        Raises:
            RunInUseError: another process has it locked. RunFolderError: it cannot be written.
        """
        try:
            lock = (self.home / _LOCK).open("a")
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be written: {error.strerror}") from error
        if not _locks(lock):
            lock.close()
            last = last_session(self.read_meta())
            named = (
                f"; its last session has process {last.get('pid')} on {last.get('host')}"
                if last
                else ""
            )
            raise RunInUseError(f"{self.path}: another process is running in this folder{named}")
        self._lock, self._directory = lock, os.stat(self.home)

    def close(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def discard(self) -> None:
        """Remove the folder of a run that has not begun, so that its name is free again."""
        shutil.rmtree(self.home, ignore_errors=True)
        renew_latest(self.home.parent)

    def is_there(self) -> bool:
        """Whether the directory is still the one that was locked, with the config in it."""
        try:
            now = os.stat(self.home)
        except OSError:
            return False
        same = self._directory is None or os.path.samestat(self._directory, now)
        return same and os.path.isfile(self.config)

    def duplicate(self, home: Path, config_yaml: str, metrics: bytes) -> Self:
        """A new folder in ``home`` with the config, meta.json and metrics of this one, unlocked.

        Raises:
            OSError: ``home`` cannot be written; nothing is left behind.
        """
        path = tempfile.mkdtemp(prefix=f"{self.home.name}-saved-", dir=home)
        folder = type(self)(Path(path))
        try:
            replace_text(folder.config, config_yaml)
            folder.metrics.write_bytes(metrics)
            folder._write_meta(self._noted)
        except OSError:
            folder.discard()
            raise
        return folder

    def is_finished(self) -> bool:
        """Whether nothing is left to resume."""
        return self.read_meta().get("outcome") == "finished"

    def read_meta(self) -> dict[str, Any]:
        """The content of meta.json; empty if it is missing or damaged, as nothing depends on it."""
        with suppress(OSError, ValueError, TypeError, RecursionError):
            return dict(json.loads(self.meta.read_text()))
        return {}

    def begin_session(self, *, resumed_from: int | None, overrides: Iterable[str]) -> None:
        """Record in meta.json that a process has begun to run in the folder.

        Warns if the session before it has recorded no outcome.
        """
        self._earlier = self.read_meta()
        meta = self._earlier or {"created": now(), "sessions": []}
        if meta.get("outcome") == "running":
            _log.warning("the last session ended without an outcome: %s", self.KILLED)
        session = new_session(resumed_from, overrides)
        sessions = [*(meta.get("sessions") or ()), session]
        self._write_meta({**meta, "outcome": "running", "sessions": sessions})

    def end_session(self, outcome: str, reason: str, iteration: int | None) -> None:
        """Record the outcome, "finished", "interrupted" or "failed", and its reason."""
        meta = self.read_meta() or self._noted
        if meta.get("sessions"):
            meta["sessions"][-1] |= {"ended": now(), "outcome": outcome, "reason": reason}
        self._write_meta(meta | {"outcome": outcome, "training_iteration": iteration})

    def withdraw_session(self) -> None:
        """Restore meta.json from before a session that failed to begin; remove a new folder."""
        if self.is_new:
            self.discard()
        elif self._earlier:
            self._write_meta(self._earlier)

    def _write_meta(self, meta: dict[str, Any]) -> None:
        self._noted, text = meta, json.dumps(meta, indent=2) + "\n"
        try:
            replace_text(self.meta, text)
        except OSError:
            if not self.meta.exists() or len(text) > self.meta.stat().st_blocks * 512:
                raise
            with self.meta.open("r+") as file:  # a full disk still has the file's own blocks
                file.write(text)
                file.truncate()


def resolve_run(path: Path, config: str = RunFolder.CONFIG) -> Path:
    """The run folder that ``path`` names: itself, or the ``latest`` of ``runs/<name>``."""
    if not os.path.exists(path):
        home = path.parent if len(path.parts) > 1 else Path(RUNS)  # where names of runs are
        raise RunFolderError(f"{path}: no such run folder{similar_folder(path, home)}")
    if is_of_checkpoints(path):
        raise RunFolderError(
            f"{path}: checkpoints are not runs; name the folder that contains them"
        )
    if (path / config).is_file():
        return path
    if (path / LATEST / config).is_file():
        latest = path / LATEST
        return path / latest.readlink() if latest.is_symlink() else latest
    if is_sweep_folder(path):
        home = path if (path / SWEEP_CONFIG).is_file() else path / LATEST
        raise RunFolderError(
            f"{path}: this is a sweep; name one of its trials, in {home / 'trials'}"
        )
    newest = newest_run(path)
    hint = "" if newest is None else f"; the newest run in it is {newest}"
    raise RunFolderError(f"{path}: not a run folder: it has no {config}{hint}")


def is_checkpoint(path: Path) -> bool:
    """Whether ``path`` is a checkpoint."""
    return os.path.isfile(path / MANIFEST)


def is_of_checkpoints(path: Path) -> bool:
    """Whether ``path`` is a checkpoint, or the folder of a run's checkpoints."""
    return is_checkpoint(path) or is_checkpoint(path / LATEST)


def in_shell(path: Path) -> str:
    """A path as an argument in a shell command."""
    return shlex.quote(str(path))


def newest_run(home: Path) -> Path | None:
    """The run or sweep in ``home`` that was created last."""
    runs = [
        path
        for path in (home.iterdir() if home.is_dir() else ())
        if not path.is_symlink()
        and any(os.path.isfile(path / name) for name in (RunFolder.CONFIG, SWEEP_CONFIG))
    ]
    long_ago = datetime.min.replace(tzinfo=UTC)
    return max(runs, default=None, key=lambda run: created(RunFolder(run).read_meta()) or long_ago)


def created(meta: Mapping[str, Any]) -> datetime | None:
    """When the run with this meta.json was created; None if that is damaged."""
    with suppress(ValueError):
        return datetime.fromisoformat(str(meta.get("created"))).astimezone()
    return None


def renew_latest(home: Path) -> None:
    """If ``latest`` is broken, point it at the newest remaining run, or remove it."""
    link = home / LATEST
    if not link.is_symlink() or link.exists():
        return
    newest = newest_run(home)
    if newest is not None:
        replace_link(link, newest.name)
        return
    link.unlink()
    with suppress(OSError):  # it holds something else
        home.rmdir()


def plain_settings(config: Path) -> dict[str, Any]:
    """The settings in a folder's file as plain values, without importing the code that they name.

    Raises:
        RunFolderError, ConfigError: the file is missing or damaged.
    """
    try:
        plain = parse_yaml(config.read_text(encoding="utf-8"), str(config)).plain()
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", error)
        raise RunFolderError(f"{config}: cannot be read: {what}") from error
    env = plain.get("env") if isinstance(plain, dict) else None
    env = {"use": env} if isinstance(env, str) else env
    if not isinstance(env, dict) or not isinstance(plain.get("algorithm"), str):
        raise RunFolderError(f"{config}: the file is damaged: it names no algorithm or no env")
    return {**plain, "env": {"use": None, **env}}


def refuse_links_out(path: Path) -> None:
    """Raise if a link in a run folder leads out of it: files must be written within the folder."""
    home = os.path.realpath(path)
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            link = os.path.join(folder, name)
            if not os.path.islink(link):
                continue
            target = os.path.realpath(link)
            if os.path.commonpath((home, target)) != home:
                raise RunFolderError(
                    f"{link}: a link out of the run folder, to {target}, cannot be written; "
                    "replace it by a copy"
                )


def is_sweep_folder(path: Path) -> bool:
    """Whether ``path`` names a sweep, itself or by its ``latest``."""
    return any(os.path.isfile(home / SWEEP_CONFIG) for home in (path, path / LATEST))


def _locks(lock: IO[str]) -> bool:
    """Lock a file; False if another process has it locked, for longer than `is_in_use` takes."""
    deadline = time.monotonic() + _LOOK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_LOOK_S / 20)
            continue
        except OSError:
            pass  # Some network file systems have no locks; runs must work there, too.
        return True


def is_in_use(path: Path) -> bool:
    """Whether any process has the run folder at ``path`` locked."""
    try:
        with (path / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # so that two can look
    except BlockingIOError:
        return True
    except OSError:
        pass  # No such folder yet, or a file system without locks.
    return False
