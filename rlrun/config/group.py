"""A group: runs of one experiment with several seeds, or several values of some settings.

Owns: several values on the command line (``training.lr=1e-3,1e-4``), and the section `sweep` that
they stand for: a grid. Must not know: how a sweep runs.
"""

from collections.abc import Sequence
from typing import Any

from rlrun.config.dump import flow
from rlrun.config.layers import split_address
from rlrun.config.problems import COMMAND_LINE, ConfigError, Problem
from rlrun.config.yaml_tree import parse_yaml

Seeds = int | Sequence[int]
"""A number of seeds, counted from the experiment's own, or the seeds."""


def group_overrides(overrides: Sequence[str], seeds: Seeds | None = None) -> list[str] | None:
    """Overrides for a group: the first value of each setting, and all values as a section `sweep`.

    The section replaces the file's; overrides of ``sweep`` are merged over it.

    Returns:
        None if there are neither seeds nor an override with several values.

    Raises:
        ConfigError: a setting with several values is given twice.
    """
    varied: dict[str, list[Any]] = {}
    single: list[str] = []
    for override in overrides:
        address, _, text = override.partition("=")
        values = several_values(text)
        if values:
            varied[address.strip()] = values
        single.append(f"{address}={flow(values[0])}" if values else override)
    if not varied and seeds is None:
        return None
    _check_once(varied, overrides, seeds)
    own = [text for text in single if split_address(text.partition("=")[0])[0] != "sweep"]
    listed = varied.pop("seed", None)
    section: dict[str, Any] = {"space": {key: {"grid": values} for key, values in varied.items()}}
    if listed is not None or seeds is not None:
        section["seeds"] = listed or (seeds if isinstance(seeds, int) else list(seeds or ()))
    of_sweep = [text for text in single if text not in own]
    return [*own, "sweep=null", f"sweep={flow(section)}", *of_sweep]


def several_values(text: str) -> list[Any]:
    """The values of ``a,b``; empty if the text is one value, such as ``[a, b]`` or ``"a,b"``."""
    if "," not in text:
        return []
    try:
        values = parse_yaml(f"[{text}]", COMMAND_LINE.source, lines=False).plain()
    except ConfigError:
        return []  # to be reported where the override is applied
    return values if isinstance(values, list) and len(values) > 1 else []


def _check_once(
    varied: dict[str, list[Any]], overrides: Sequence[str], seeds: Seeds | None
) -> None:
    given = [text.partition("=")[0].strip() for text in overrides]
    problems = [
        Problem(COMMAND_LINE, address, "given twice, once with several values")
        for address in varied
        if given.count(address) > 1
    ]
    if "seed" in varied and seeds is not None:
        problems.append(Problem(COMMAND_LINE, "seed", "several seeds exclude --seeds"))
    if problems:
        raise ConfigError(problems)
