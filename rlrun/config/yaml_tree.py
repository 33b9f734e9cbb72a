"""Strict YAML with the place of every key: text in, a tree of nodes out.

Owns: the meaning of a scalar (YAML 1.2 without its surprises), duplicate keys, broken files. Must
not know: which keys there are. Numbers are decimal: ``1``, ``-3``, ``300_000``, ``0.5``, ``1e-4``,
``1e6``. ``012``, ``0x10`` and ``1:30``, which readers of YAML understand differently, are text, as
are ``on``, ``off``, ``yes`` and ``no``; keys are always text.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml

from rlrun.config.problems import ConfigError, Origin, Path, Problem, join

_INT = re.compile(r"^[-+]?(0|[1-9][0-9]*(_[0-9]+)*)$")
FLOAT = re.compile(
    r"^[-+]?((0|[1-9][0-9]*(_[0-9]+)*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$"
)  # Whole numbers match too.
_SPECIAL: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{
        f"{sign}{name}": float(f"{sign}inf") for sign in ("", "+", "-") for name in (".inf", ".Inf")
    },
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_MOST_NODES = 10_000  # Aliases of aliases can make a short file endless.
MOST_LEVELS = 50
"""Most levels of nested values; far fewer than Python's limit of nested calls."""
_TOO_DEEP = f"nested more than {MOST_LEVELS} levels deep"


@dataclass(frozen=True)
class Node:
    """A value and the place of its key; mappings and lists contain nodes again."""

    value: Any  # dict[str, Node] | list[Node] | str | int | float | bool | None
    origin: Origin

    def plain(self) -> Any:
        """The value alone."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def child(self, part: str | int) -> "Node | None":
        """The node one step down, if there is one."""
        if isinstance(self.value, dict):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int):
            return self.value[part] if part < len(self.value) else None
        return None


def from_plain(value: Any, origin: Origin) -> Node:
    """A tree of nodes with one origin."""
    if isinstance(value, dict):
        return Node({str(key): from_plain(item, origin) for key, item in value.items()}, origin)
    if isinstance(value, list):
        return Node([from_plain(item, origin) for item in value], origin)
    return Node(value, origin)


def parse_scalar(text: str) -> Any:
    """The value of a scalar without quotes; a number too large for a float is infinite."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if FLOAT.match(text):
        digits = text.replace("_", "")
        number = float(digits)
        return int(digits) if _INT.match(text) and math.isfinite(number) else number
    return text


def parse_yaml(text: str, source: str, *, lines: bool = True) -> Node:
    """The tree of one YAML document; `source` names it in origins, with lines and columns or not.

    Raises ConfigError: one problem for text that is not YAML, or one for each duplicate key.
    """
    loader: Any = None
    try:
        loader = _Composer(text)
        document = loader.get_single_node()
    except yaml.YAMLError as error:
        raise ConfigError([_broken(error, source, text, lines)]) from None
    except RecursionError:
        raise ConfigError([Problem(_origin(source, None, lines), "", _TOO_DEEP)]) from None
    finally:
        if loader is not None:
            loader.dispose()
    builder = _TreeBuilder(lambda mark: _origin(source, mark, lines))
    tree = Node(None, _origin(source, None, lines))
    if document is not None:
        tree = builder.build(document, document.start_mark, ())
    if builder.problems:
        raise ConfigError(builder.problems)
    return tree


def _origin(source: str, mark: Any, lines: bool) -> Origin:
    if not lines:
        return Origin(source)
    return Origin(source, 1, 1) if mark is None else Origin(source, mark.line + 1, mark.column + 1)


class _Composer(yaml.SafeLoader):
    """Resolves no scalars; `style` is None for bare ones, not for quoted or tagged ones."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the name is yaml's

    def compose_scalar_node(self, anchor: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        node: Any = super().compose_scalar_node(anchor)
        node.style = None if event.implicit[0] else event.style or "'"
        return node


@dataclass
class _TreeBuilder:
    origin_of: Callable[[Any], Origin]
    problems: list[Problem] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)
    _count: int = 0

    def build(self, node: Any, mark: Any, path: Path) -> Node:
        self._count += 1
        origin = self.origin_of(mark)
        if id(node) in self._open:
            raise ConfigError([Problem(origin, join(path), "holds an alias of itself")])
        if self._count > _MOST_NODES:
            raise ConfigError(
                [Problem(origin, join(path), f"holds more than {_MOST_NODES} values")]
            )
        if len(path) > MOST_LEVELS:
            raise ConfigError([Problem(origin, str(path[0]), _TOO_DEEP)])
        self._open.add(id(node))
        value = self._value(node, origin, path)
        self._open.discard(id(node))
        return Node(value, origin)

    def _value(self, node: Any, origin: Origin, path: Path) -> Any:
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith(
            "tag:yaml.org,2002:python"
        ):
            self.problems.append(
                Problem(origin, join(path), f"tags such as {node.tag} are refused")
            )
            return None
        if isinstance(node, yaml.ScalarNode):
            is_bare = node.style is None or node.tag.endswith((":float", ":int"))
            return parse_scalar(node.value) if is_bare else node.value
        if isinstance(node, yaml.SequenceNode):
            return [
                self.build(item, item.start_mark, (*path, i)) for i, item in enumerate(node.value)
            ]
        return self._mapping(node, path)

    def _mapping(self, node: Any, path: Path) -> dict[str, Node]:
        mapping: dict[str, Node] = {}
        for key_node, value_node in node.value:
            origin = self.origin_of(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(Problem(origin, join(path), "a key must be a plain word"))
                continue
            key = key_node.value
            value = self.build(value_node, key_node.start_mark, (*path, key))
            if key in mapping:
                first = mapping[key].origin
                at = f"line {first.line}" if first.line else "before"
                message = f"duplicate key, given first at {at}"
                self.problems.append(Problem(origin, join((*path, key)), message))
            else:
                mapping[key] = value
        return mapping


def _broken(error: yaml.YAMLError, source: str, text: str, lines: bool) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    message = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    if mark is not None:
        bad_line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
        if "\t" in bad_line[: mark.column + 1]:
            message = "a tab where YAML wants spaces"
        elif "single document" in str(error):
            message = "a second document (---); one file holds one experiment"
    context = getattr(error, "context", None)
    context_mark = getattr(error, "context_mark", None)
    if context and context_mark is not None and mark is not None and "tab" not in message:
        message = f"{message} ({context}, line {context_mark.line + 1})"
    return Problem(_origin(source, mark, lines), "", f"not valid YAML: {message}")
