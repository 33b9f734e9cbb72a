"""A session of a run: what ``meta.json`` records of each process that runs in the folder.

The environment variables are never recorded: they may hold secrets. It must not know run folders.
"""

import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from importlib import metadata
from types import MappingProxyType
from typing import Any

_VERSIONS_OF = ("rlrun", "gymnasium", "numpy", "pydantic", "ray", "safetensors", "torch")
_GIT_TIMEOUT_S = 2.0


def new_session(resumed_from: int | None, overrides: Iterable[str]) -> dict[str, Any]:
    """The record of this process, which has begun to run."""
    return {
        "started": now(),
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


def sessions_of(meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The sessions in a meta.json, without damaged ones."""
    found = meta.get("sessions")
    return [each for each in found if _has_form(each)] if isinstance(found, list) else []


def _has_form(session: Any) -> bool:
    if not isinstance(session, dict):
        return False
    return all(isinstance(session.get(key) or [], list) for key in ("argv", "overrides"))


def last_session(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The last session in a meta.json; empty without any."""
    return (sessions_of(meta) or [{}])[-1]


def now() -> str:
    """The time, with its zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


@cache
def _versions() -> Mapping[str, str]:
    """Releases of the packages that a run depends on, as this process has them."""
    found = {}
    for name in _VERSIONS_OF:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return MappingProxyType(found)


def _git() -> dict[str, Any] | None:
    """Commit of the working directory's code, and whether it has been changed since."""
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
