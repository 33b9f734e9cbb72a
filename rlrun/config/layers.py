"""Base files, the file and the command line, merged into one tree.

Owns: reading files, `base:`, KEY=VALUE, addresses, and the rules of merging. Must not know: which
keys there are, except `base`, `stop`, `sweep.space`, `agents` of two sections, and the forms of
code and schedules.

Mappings merge key by key; all other values are replaced. A mapping with another ``use`` replaces
the whole mapping, since its keys are arguments of other code. So does a schedule of another
``kind``, the distribution of a setting in `sweep.space`, and code in place of a table of agents.
``null`` removes a stop criterion.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath

from rlrun.config.problems import COMMAND_LINE, ConfigError, Origin, Problem, join
from rlrun.config.registry import similar_file
from rlrun.config.yaml_tree import MOST_LEVELS, Node, as_key, parse_yaml


def read_file(path: FilePath, open_files: tuple[FilePath, ...] = ()) -> Node:
    """The tree of a file, merged over its `base`. Raises ConfigError if either cannot be read."""
    tree = parse_yaml(_read_text(path), str(path))
    if tree.value is None:
        raise ConfigError([Problem(Origin(str(path), 1, 1), "", "the file is empty")])
    if not isinstance(tree.value, dict):
        message = "expected keys and values, such as `algorithm: PPO`"
        raise ConfigError([Problem(tree.origin, "", message)])
    base = tree.value.pop("base", None)
    if base is None or base.value is None:
        return tree
    return merge(_read_base(path, base, (*open_files, path.resolve())), tree)


def _read_text(path: FilePath) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        message = f"there is no such file{similar_file(path)}"
    except UnicodeDecodeError as error:
        message = f"not a text file: byte {error.start} is not UTF-8"
    except (OSError, ValueError) as error:  # a name too long, or with a null byte
        message = f"cannot be read: {getattr(error, 'strerror', error)}"
    raise ConfigError([Problem(Origin(str(path)), "", message)])


def _read_base(path: FilePath, base: Node, open_files: tuple[FilePath, ...]) -> Node:
    if not isinstance(base.value, str):
        message = f"expected the name of one file, got {base.plain()!r}"
        raise ConfigError([Problem(base.origin, "base", message)])
    base_path = path.parent / base.value
    if not os.path.isfile(base_path):
        raise ConfigError([Problem(base.origin, "base", f"there is no file {base_path}")])
    if base_path.resolve() in open_files:
        chain = " -> ".join(file.name for file in (*open_files, base_path.resolve()))
        raise ConfigError([Problem(base.origin, "base", f"the files form a cycle: {chain}")])
    return read_file(base_path, open_files)


def merge(below: Node, above: Node, at: tuple[str, ...] = ()) -> Node:
    """`above` merged over `below`, both at this address; values keep their origins."""
    if isinstance(below.value, str) and isinstance(above.value, dict) and "use" not in above.value:
        # Only ever valid for {use: ...} sections: `env: CartPole-v1` below, `env.key=value` above.
        below = Node({"use": below}, below.origin)
    if not isinstance(below.value, dict) or not isinstance(above.value, dict):
        return above
    if at[:2] == _SPACE:
        if _is_distribution(below) and _is_distribution(above):
            return above
        if at == _SPACE:
            below, above = _by_section(below), _by_section(above)
    elif at in AGENTS and "use" in above.value and "use" not in below.value:
        return above  # code in place of a table
    elif any(_differ(below, above, name, form) for name, form in _FORMS.items()):
        return above
    merged = dict(below.value)
    for key, node in above.value.items():
        merged[key] = merge(merged[key], node, (*at, key)) if key in merged else node
    return Node(merged, above.origin)


_FORMS = {"use": {"use"}, "kind": {"kind", "start"}}
"""Key that identifies the code or schedule of a mapping -> keys that every such mapping has."""


def _differ(below: Node, above: Node, name: str, form: set[str]) -> bool:
    """Whether both mappings are code, or both schedules, of different names."""
    return all(form <= side.value.keys() for side in (below, above)) and (
        below.value[name].plain() != above.value[name].plain()
    )


def _is_distribution(node: Node) -> bool:
    """Whether a mapping below `sweep.space` is a distribution: sections hold mappings instead."""
    return bool(node.value) and all(isinstance(item.value, list) for item in node.value.values())


AGENTS = (("multi_agent", "agents"), ("evaluation", "agents"))
"""Addresses of tables of agents, or of code in their place."""
_SPACE = ("sweep", "space")


def _by_section(space: Node) -> Node:
    """`sweep.space` with ``training.lr`` as nested keys, so that equal addresses meet.

    A space with an address twice is returned unchanged, and reported later.
    """
    settings = list(_settings(space, ()))
    if len({path for path, _ in settings}) < len(settings):
        return space
    sections = Node({}, space.origin)
    for path, node in settings:
        sections = merge(sections, _nested(path, node, node.origin))
    return sections


def _settings(node: Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Node]]:
    if isinstance(node.value, dict) and node.value and not _is_distribution(node):
        for key, below in node.value.items():
            yield from _settings(below, (*path, *split_address(key)))
    elif path:
        yield path, node


def without_dropped_stops(tree: Node) -> Node:
    """The tree without the stop criteria that are ``null``."""
    stop = tree.child("stop")
    if stop is None or not isinstance(stop.value, dict):
        return tree
    kept = {key: node for key, node in stop.value.items() if node.value is not None}
    return Node({**tree.value, "stop": Node(kept, stop.origin)}, tree.origin)


def without(tree: Node, address: str) -> Node:
    """The tree without what is at an address, in which ``*`` stands for any key."""
    if not isinstance(tree.value, dict):
        return tree
    head, _, rest = address.partition(".")
    kept = {}
    for key, node in tree.value.items():
        if head not in (key, "*"):
            kept[key] = node
        elif rest:
            kept[key] = without(node, rest)
    return Node(kept, tree.origin)


def require_list(overrides: Sequence[str]) -> None:
    """Raise TypeError for one text in place of a list, which would be read letter by letter."""
    if isinstance(overrides, str):
        raise TypeError(f"overrides is a list of KEY=VALUE texts, such as [{overrides!r}]")


def apply_overrides(tree: Node, overrides: Sequence[str]) -> tuple[Node, list[Problem]]:
    """The tree with each ``KEY=VALUE`` merged over it in turn, and their problems."""
    require_list(overrides)
    problems: list[Problem] = []
    for override in overrides:
        address, equals, text = override.partition("=")
        address = address.strip()
        path = split_address(address)
        if not equals or not all(path):
            message = f"expected KEY=VALUE, such as training.lr=1e-3, got {override!r}"
            problems.append(Problem(COMMAND_LINE, "", message))
            continue
        if path == ["base"]:
            problems.append(Problem(COMMAND_LINE, "base", "only a file can name its base"))
            continue
        try:
            value = parse_yaml(text, COMMAND_LINE.source, lines=False)
            tree = set_value(tree, path, value)
        except ConfigError as error:
            problems += [Problem(p.origin, p.key or address, p.message) for p in error.problems]
        except LookupError as error:
            problems.append(Problem(COMMAND_LINE, address[:80], str(error.args[0])))
    return tree, problems


def override_of(key: str, overrides: Sequence[str]) -> str | None:
    """The value, as text, of the last ``KEY=VALUE`` of this key; None without one."""
    texts = [text for text in overrides if text.partition("=")[0].strip() == key]
    return texts[-1].partition("=")[2].strip() if texts else None


def split_address(address: str) -> list[str]:
    """``training.lr`` or ``training/lr`` as keys; a stop key keeps its own slashes.

    An item of a list is written ``callbacks.0`` or, as messages have it, ``callbacks[0]``.
    """
    address = re.sub(r"\[(\d+)\]", r".\1", address)
    if address.startswith(("stop.", "stop/")) and (key := address[5:]):
        return ["stop", key if "/" in key else key.replace(".", "/")]
    parts = address.split(".") if "." in address else address.split("/")
    return [as_key(part) for part in parts]


def set_value(tree: Node, path: list[str], value: Node, at: tuple[str, ...] = ()) -> Node:
    """The tree at an address with `value` merged in at `path`; list items have numbers as keys.

    Raises LookupError for a position that a list does not have, and for too many keys.
    """
    if len(path) > MOST_LEVELS:
        raise LookupError(f"more than {MOST_LEVELS} keys")
    head, *rest = path
    here = (*at, head)
    tree = _by_section(tree) if at == _SPACE else tree
    if isinstance(tree.value, list):
        if not head.isdecimal() or int(head) >= len(tree.value):
            count = len(tree.value)
            raise LookupError(f"{head!r} is not a position in a list of {count}, counted from 0")
        items = list(tree.value)
        index = int(head)
        item = items[index]
        items[index] = set_value(item, rest, value, here) if rest else merge(item, value, here)
        return Node(items, COMMAND_LINE)
    below = tree.child(head)
    if rest and below is not None and isinstance(below.value, dict | list):
        return Node({**tree.value, head: set_value(below, rest, value, here)}, tree.origin)
    nested = Node({head: _nested(rest, value, COMMAND_LINE)}, tree.origin)
    return merge(tree, nested, at)


def _nested(path: Sequence[str], value: Node, origin: Origin) -> Node:
    for key in reversed(path):
        value = Node({key: value}, origin)
    return value


def find(tree: Node, path: Sequence[str | int]) -> Node:
    """The node at `path`, or the deepest one on the way there."""
    for part in path:
        below = tree.child(part)
        if below is None and part == "kwargs":
            continue  # Arguments stand beside `use` in a file.
        if below is None:
            break
        tree = below
    return tree


def address(path: Sequence[str | int]) -> str:
    """A path as a user writes it: without the `kwargs` level."""
    return join(tuple(part for part in path if part != "kwargs"))
