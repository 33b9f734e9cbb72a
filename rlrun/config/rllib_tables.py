"""Tables for the translation of RLlib's experiment files (rllib_file.py).

Owns: what the tables in rllib_tables.yaml mean: algorithms, defaults and environments of RLlib 2.4,
the last release with all ten algorithms, and the addresses of its nested keys in rlrun. Names that
take the same value in any form of config are in retired.yaml. Must not know: the schema; a test
holds that every address exists in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rlrun.config.yaml_tree import by_name, read_table

_BY_NAME = ("not_here", "addresses", "only", "env_arguments", "env_ids", "without_counterpart")
"""Tables whose keys are one or more names."""


@dataclass(frozen=True)
class Tables:
    """The tables of rllib_tables.yaml."""

    algorithms: Mapping[str, str]
    """Value of `run` -> the algorithm in rlrun."""
    not_here: Mapping[str, str]
    """Value of `run` that is not translated -> what to do instead."""
    defaults: Mapping[str, Mapping[str, Any]]
    """Value of `run` -> RLlib's defaults that differ from rlrun's, with the names of `addresses`
    and RLlib's meaning."""
    addresses: Mapping[str, str]
    """Key of RLlib's `config`, or ALGORITHM.KEY -> its name in `defaults`. If the meaning differs
    too, the rules of the algorithm (rllib_rules.py) convert the value. Other keys are found by
    `retired.table`, or by their own name."""
    spellings: Mapping[str, str]
    """Name of a mapping in older or newer releases -> its name in `addresses`."""
    of_all_networks: Sequence[str]
    """Mappings that apply to all networks of an algorithm."""
    mappings: Sequence[str]
    """Keys of `config` whose values are mappings."""
    kept: Sequence[str]
    """Keys of `config` that are translated by rules."""
    only: Mapping[str, tuple[Sequence[Any], str]]
    """Key -> the values that need no translation, and why others are refused."""
    explorations: Sequence[str]
    """Values of `exploration_config.type` that are translated."""
    noise_defaults: Mapping[str, Any]
    """RLlib's defaults for noise that is added to actions, in the order that the rule reads."""
    envs: Mapping[str, str]
    """Class of RLlib's examples -> rlrun's environment."""
    several_agents: Sequence[str]
    """The environments of `envs` with several agents."""
    env_arguments: Mapping[str, str | None]
    """Argument of these classes -> its name in rlrun; None has no counterpart."""
    env_ids: Mapping[str, str]
    """Id that gymnasium no longer has, or cannot make -> the id to use."""
    without_counterpart: Mapping[str, str]
    """Key beside `config` -> why it has no counterpart."""


@cache
def tables() -> Tables:
    """The tables, read once when the first file is translated."""
    found = read_table(Path(__file__).with_name("rllib_tables.yaml"))
    return Tables(**found | {name: by_name(found[name]) for name in _BY_NAME})
