"""The folder in which a local Ray keeps its session: its logs and sockets.

Owns its removal, by another process if the one that started Ray was killed: a lock in the folder
marks it as rlrun's own, and is free as soon as its process has ended. Knows nothing of Ray.
"""

import fcntl
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

_LOCK = "rlrun.lock"
_REMOVALS = 10  # until Ray's processes have ended
_PAUSE_S = 0.3


class SessionFolder:
    """The folder of a Ray that this process has started.

    Args:
        path: made by Ray.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = self._locked()

    def remove(self) -> None:
        """Remove the folder; workers that are about to end may still write to their logs."""
        for _ in range(_REMOVALS):
            shutil.rmtree(self.path, ignore_errors=True)
            if not self.path.exists():
                break
            time.sleep(_PAUSE_S)
        self._lock.close()
        latest = self.path.parent / "session_latest"
        if latest.is_symlink() and not latest.exists():
            latest.unlink(missing_ok=True)

    def remove_abandoned(self) -> None:
        """Remove the folders beside this one whose processes were killed.

        Folders without a lock stay: they belong to a Ray that rlrun did not start.
        """
        for lock in self.path.parent.glob(f"session_*/{_LOCK}"):
            with suppress(OSError), lock.open() as file:  # of another user, or locked
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)

    def _locked(self) -> IO[str]:
        """The lock; it gets its name only once it is locked, so that it is never found free."""
        new = self.path / f"{_LOCK}.new"
        file = new.open("w")
        with suppress(OSError):  # a file system without locks: `remove_abandoned` has none either
            fcntl.flock(file, fcntl.LOCK_EX)
            os.replace(new, self.path / _LOCK)
        return file
