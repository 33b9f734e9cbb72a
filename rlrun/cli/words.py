"""The words of a command: one file, and overrides.

Owns telling them apart. It must not know what a command does with them.
"""

from pathlib import Path

import typer


def split_words(words: list[str]) -> tuple[Path | None, list[str]]:
    """Overrides have an equals sign; the one word without is the file."""
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise typer.BadParameter(f"one FILE.yaml at a time, got {' and '.join(files)}")
    overrides = [word for word in words if "=" in word]
    return (Path(files[0]) if files else None), overrides
