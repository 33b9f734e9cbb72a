"""Atomic writes: readers find files, links and directories whole or not at all.

Owns the temporary names and the syncing to disk. It must not know what the files are for.

Content is written under a temporary name beside its target and appears there by one rename, so a
kill at any moment leaves the old content or the new, never a part of either.
"""

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_log = logging.getLogger(__name__)


def replace_text(path: Path, text: str) -> None:
    """Write a small text file atomically; raises OSError, with its path, if that fails."""
    try:
        # Mode "x" does not write through a link that has the temporary name.
        with _renamed_to(path) as temporary, temporary.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def replace_link(link: Path, target: str) -> None:
    """Point a symbolic link at ``target``; a failure, as without support for links, is logged."""
    try:
        with _renamed_to(link) as temporary:
            temporary.symlink_to(target)
    except OSError as error:
        _log.info("%s: no link to %s: %s", link, target, error)


@contextmanager
def _renamed_to(path: Path) -> Iterator[Path]:
    """Yield a free name beside ``path``; what is made there is renamed to ``path`` at the end."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        yield temporary
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def replaced_directory(directory: Path) -> Iterator[Path]:
    """Yield an empty directory; with the files made there it becomes ``directory`` at the end.

    They are synced to disk first. A directory of that name is replaced once the new one is
    complete. Raises OSError if that fails; nothing of the new one is left then, nor after an error
    in the context.
    """
    temporary = directory.parent / f".writing-{directory.name}-{os.getpid()}"
    replaced = directory.parent / f".replaced-{directory.name}-{os.getpid()}"
    for leftover in (temporary, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for path in (*temporary.iterdir(), temporary):
            _sync(path)
        if directory.exists():
            os.rename(directory, replaced)
        os.rename(temporary, directory)
        _sync(directory.parent)
    except BaseException:
        with suppress(OSError):  # there is a directory: the new one, or still the old one
            os.rename(replaced, directory)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def remove_directory(directory: Path) -> None:
    """Remove a directory; a kill meanwhile leaves no part of it under its name."""
    doomed = directory.with_name(f".old-{directory.name}")
    with suppress(FileNotFoundError):  # the user was faster
        os.rename(directory, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary directories that killed processes have left in ``folder``."""
    for pattern in (".writing-*", ".replaced-*", ".old-*"):
        for leftover in list(folder.glob(pattern)):
            shutil.rmtree(leftover, ignore_errors=True)


def _sync(path: Path) -> None:
    """Sync to disk. Some network file systems cannot sync directories, which is no error."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
