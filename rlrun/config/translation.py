"""Translation of another library's file: old settings on their way to addresses of rlrun's.

Owns: the values of one old experiment with the places of their keys, the keys that are refused and
those without effect, and the tree in rlrun's form that follows. Must not know: any other library.
"""

from dataclasses import dataclass
from typing import Any

from rlrun.config.problems import COMMAND_LINE, ConfigError, Origin, Problem
from rlrun.config.registry import no_such
from rlrun.config.schema import ExperimentConfig
from rlrun.config.section import MOST
from rlrun.config.yaml_tree import Node, from_plain


@dataclass(frozen=True)
class Translation:
    """An experiment of an old file in rlrun's form."""

    name: str
    tree: Node
    """The new settings; each value has the place of the old key, or names the default it is."""
    sources: dict[str, str]
    """Address -> the old key, and what was done to its value where it changed."""
    without_effect: tuple[Problem, ...]
    """Keys that nothing here corresponds to, each with the reason."""
    library: str
    """Whose file it is."""


def chosen_entry(tree: Node, name: str | None, noun: str) -> str:
    """The name of one entry of a file: the only one, or the one that the command line names.

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
        several = f"the file holds {len(names)} {noun}s, {listed}; choose one: name={names[0]}"
        raise ConfigError([Problem(tree.origin, "", several)])
    if name not in names:
        raise ConfigError([Problem(COMMAND_LINE, "name", no_such(noun, name, names))])
    return name


class OldSettings:
    """The settings of one experiment of an old file.

    Args:
        name: name of the experiment.
        library: name of the library whose file it is.
        default: origin of the library's defaults, which the file does not hold.

    Attributes:
        values: old name, in the end an address -> value.
        sources: name -> the old key, and what was done to its value where that changed.
        problems: keys that are refused.
        without_effect: keys that nothing here corresponds to.
    """

    def __init__(self, name: str, library: str, default: Origin) -> None:
        self.name, self.library, self.default = name, library, default
        self.values: dict[str, Node] = {}
        self.sources: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.without_effect: list[Problem] = []

    def value(self, name: str, default: Any = None) -> Any:
        """The value of a setting."""
        return self.values[name].plain() if name in self.values else default

    def number(self, name: str, default: Any = None) -> Any:
        """The value of a setting if it is a number above 0 that may be valid, else the default."""
        value = self.value(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return value if is_number and 0 < value <= MOST else default

    def take(self, name: str) -> Any:
        """The value of a setting, which is removed; None where there is none."""
        node = self.values.pop(name, None)
        return None if node is None else node.plain()

    def is_given(self, name: str) -> bool:
        """Whether the file has the setting."""
        return name in self.values and self.values[name].origin != self.default

    def set(self, name: str, value: Any, node: Node, key: str) -> None:
        """Set a value that was written at `node`, under `key`."""
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
        """A key that cannot be translated."""
        self.problems.append(Problem(node.origin, f"{self.name}.{key}", message))

    def ignore(self, node: Node, key: str, reason: str) -> None:
        """A key that has no effect here."""
        self.without_effect.append(Problem(node.origin, f"{self.name}.{key}", reason))

    def finish(self, origin: Origin, algorithm_origin: Origin, algorithm: str) -> Translation:
        """The translation of the values, which have addresses by now.

        Raises:
            ConfigError: with all problems.
        """
        if self.problems:
            raise ConfigError(sorted(dict.fromkeys(self.problems), key=_line))
        tree = {"algorithm": Node(algorithm, algorithm_origin)}
        for address in sorted(self.values, key=_place):
            section, _, field = address.partition(".")
            if field:
                below = tree.setdefault(section, Node({}, origin))
                below.value[field] = self.values[address]
            else:
                tree[section] = self.values[address]
        sources = {address: self.sources[address] for address in self.values if address != "sweep"}
        without_effect = tuple(self.without_effect)
        return Translation(self.name, Node(tree, origin), sources, without_effect, self.library)


def _line(problem: Problem) -> tuple[int, int]:
    return problem.origin.line or 0, problem.origin.column or 0


def _place(address: str) -> int:
    return list(ExperimentConfig.model_fields).index(address.partition(".")[0])
