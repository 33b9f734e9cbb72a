"""The experiment files that come with rlrun.

Owns: where they are. Must not know: what is in them.
"""

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def configs_folder() -> Path:
    """The folder of the shipped files: inside an installed package, beside it in a checkout."""
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"
