"""Replacing small files and links in one step, so that nobody ever sees half of one.

Owns the temporary names. It must not know what the files are for.
"""

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that readers see the old text or the new one, never a part."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def replace_link(link: Path, target: str) -> None:
    """Point a symbolic link at ``target``; only logged where the file system has no links."""
    temporary = link.with_name(f".{link.name}-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        os.replace(temporary, link)
    except OSError as error:
        log.info("%s: no link to %s: %s", link, target, error)
