"""An experiment as YAML: a complete file that loads to an equal experiment.

Owns: the written form of resolved configs. Must not know: run folders, terminals.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import yaml
from pydantic import BaseModel

from rlrun.config.problems import Origin, Path, join
from rlrun.config.schedules import Decay
from rlrun.config.schema import ExperimentConfig
from rlrun.config.section import CodeSection
from rlrun.config.yaml_tree import FLOAT, Bare, parse_scalar


def to_plain(value: Any) -> Any:
    """A config object, or a value inside one, as in a file."""
    if isinstance(value, CodeSection | Decay):
        return to_plain(value.to_plain())
    if isinstance(value, BaseModel):
        return {name: to_plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def dump_yaml(experiment: ExperimentConfig) -> str:
    """The whole experiment with its defaults, as a file for `load_experiment`."""
    return _render(to_plain(experiment), lambda _: None)


def show_yaml(experiment: ExperimentConfig, origin: Callable[[Path], Origin]) -> str:
    """Like `dump_yaml`, with the origin of each value in a comment after it."""
    return _render(to_plain(experiment), lambda path: str(origin(path)))


def written_yaml(tree: dict[str, Any], sources: Mapping[str, str]) -> str:
    """Plain values as a file, with a comment for each value whose source differs from its key."""

    def note(path: Path) -> str | None:
        source = sources.get(join(path))
        return None if source == path[-1] else source

    return _render(tree, note)


def _render(values: dict[str, Any], note: Callable[[Path], str | None]) -> str:
    lines: list[tuple[str, str | None]] = []
    for key, value in values.items():
        if not isinstance(value, dict) or not value:
            lines.append((f"{_name(key)}: {flow(value)}", note((key,))))
            continue
        lines.append((f"{key}:", None))
        for name, item in value.items():
            lines.append((f"  {_name(name)}: {flow(item)}", note((key, name))))
    width = min(60, max(len(text) for text, _ in lines))
    return "".join(
        f"{text:{width}}  # {comment}\n" if comment else f"{text}\n" for text, comment in lines
    )


def flow(value: Any) -> str:
    """A plain value on one line, as it may stand anywhere in a file."""
    # Most values of a config are these, and yaml takes as long for one as for a small file.
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    text: str = yaml.dump(
        [value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=10**9
    )
    return text.strip()[1:-1]  # Without the brackets of a list of one.


@cache
def _name(key: str) -> str:
    """A key as text; cached, since each run of a process writes the same keys."""
    return flow(key)


class _Dumper(yaml.SafeDumper):
    """Quotes text that a YAML 1.1 or 1.2 parser might not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value out: an alias is harder to read."""
        return True


def _represent_text(dumper: Any, text: str) -> Any:
    # Line breaks are escaped: every value stays on its line, and its comment with it.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(Bare, lambda dumper, key: dumper.represent_data(parse_scalar(key)))
# Text such as "1e-4" is a number to us and not to yaml, which would leave its quotes off.
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", FLOAT, list("-+.0123456789"))
