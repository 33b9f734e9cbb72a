"""Translation of settings of another library to rlrun's; base of the importers.

Owns: the values of one old experiment with the places of their keys, the keys that are refused or
have no effect, and the resulting tree in rlrun's form. Must not know: any other library.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from rlrun.config.problems import COMMAND_LINE, ConfigError, Origin, Problem
from rlrun.config.registry import no_such
from rlrun.config.schema import ExperimentConfig
from rlrun.config.section import MOST
from rlrun.config.yaml_tree import Node, from_plain


@dataclass(frozen=True)
class Translation:
    """An experiment of another library's file, in rlrun's form."""

    name: str
    tree: Node
    """The new settings; the origin of a value is the old key's place, or names the default."""
    sources: dict[str, str]
    """Address -> the old key, and how its value was converted."""
    without_effect: tuple[Problem, ...]
    """Keys without effect in rlrun, with reasons."""
    library: str
    """Name of the other library."""


def chosen_entry(tree: Node, name: str | None, noun: str) -> str:
    """The name of a file's only entry, or `name`, which the command line gives.

    Args:
        noun: word for an entry, for messages.

    Raises:
        ConfigError: there are several and `name` is None, or none has this name.
    """
    names = list(tree.value)
    if len(names) == 1:
        return str(names[0])
    if name is None:
        listed = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        several = f"the file has {len(names)} {noun}s, {listed}; choose one, as in name={names[0]}"
        raise ConfigError([Problem(tree.origin, "", several)])
    if name not in names:
        raise ConfigError([Problem(COMMAND_LINE, "name", no_such(noun, name, names))])
    return name


class OldSettings:
    """The settings of one experiment of an old file.

    Attributes:
        library: name of the library.
        default: origin of values that are the library's defaults.
        values: name -> value; the old name until it is translated, then the address.
        sources: name -> the old key, and how its value was converted.
        problems: keys that are refused.
        without_effect: keys without effect in rlrun.
    """

    library: ClassVar[str]
    default: ClassVar[Origin]

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, Node] = {}
        self.sources: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.without_effect: list[Problem] = []

    def value(self, name: str, default: Any = None) -> Any:
        """The value of a setting, or `default` if there is none."""
        return self.values[name].plain() if name in self.values else default

    def number(self, name: str, default: Any = None) -> Any:
        """The value of a setting if it is a positive number of valid size, else `default`."""
        value = self.value(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number and 0 < value <= MOST else default

    def take(self, name: str) -> Any:
        """Remove a setting and return its value, or None if there is none."""
        node = self.values.pop(name, None)
        return None if node is None else node.plain()

    def is_given(self, name: str) -> bool:
        """Whether the setting is in the file."""
        return name in self.values and self.values[name].origin != self.default

    def set(self, name: str, value: Any, node: Node, key: str) -> None:
        """Set a value from the place of `node` and the old key `key`."""
        self.values[name] = from_plain(value, node.origin)
        self.sources[name] = key

    def derive(self, name: str, value: Any, source: str, why: str = "") -> None:
        """Set a value that follows from the setting `source`."""
        node = self.values.get(source)
        origin = self.default if node is None else node.origin
        said = self.sources.get(source, source)
        self.sources[name] = f"{said}: {why}" if why else said
        self.values[name] = from_plain(value, origin)

    def refuse(self, node: Node, key: str, message: str) -> None:
        """Add a problem for a key that cannot be translated."""
        self.problems.append(Problem(node.origin, f"{self.name}.{key}", message))

    def ignore(self, node: Node, key: str, reason: str) -> None:
        """Note a key without effect in rlrun."""
        self.without_effect.append(Problem(node.origin, f"{self.name}.{key}", reason))

    def finish(self, origin: Origin, algorithm_origin: Origin, algorithm: str) -> Translation:
        """The translation of `values`, whose names must all be addresses by now.

        Raises:
            ConfigError: with all problems.
        """
        if self.problems:
            places = {p: (p.origin.line or 0, p.origin.column or 0) for p in self.problems}
            raise ConfigError(sorted(places, key=places.__getitem__))
        tree = {"algorithm": Node(algorithm, algorithm_origin)}
        order = list(ExperimentConfig.model_fields)
        for address in sorted(self.values, key=lambda name: order.index(name.partition(".")[0])):
            section, _, field = address.partition(".")
            if field:
                below = tree.setdefault(section, Node({}, origin))
                below.value[field] = self.values[address]
            else:
                tree[section] = self.values[address]
        sources = {address: self.sources[address] for address in self.values if address != "sweep"}
        without_effect = tuple(self.without_effect)
        return Translation(self.name, Node(tree, origin), sources, without_effect, self.library)
