"""Describes the machine of a measurement, since measurements of two machines do not compare."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent


def describe() -> dict[str, Any]:
    """CPU, cores, memory, system and the commit that was measured; no host name, no user."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": sys.version.split()[0],
        "commit": commit(REPOSITORY),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def cpu_model() -> str:
    """The processor's name, from the kernel."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def commit(directory: Path) -> str:
    """Short hash of a checkout, with `+` when tracked files were changed.

    Files that the benchmarks write do not count.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(directory), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        ours = [":!benchmarks/results", ":!docs/benchmarks.md"]
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", *ours)
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
