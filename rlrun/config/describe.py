"""Types and values of the schema in words, for error messages and the reference.

Owns: the wording of "expected a whole number of at least 1 or "auto", got the text 'x'". Must not
know: single fields.
"""

import json
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlrun.config.registry import suggestion
from rlrun.config.section import MOST, UseSpec
from rlrun.config.yaml_tree import parse_scalar

_WORDS: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
    dict: "keys and values",
    Any: "anything",
}
_BOUNDS = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}


def describe_field(field: FieldInfo) -> str:
    """The values that a field takes, in words."""
    return describe(field.annotation, list(field.metadata))


def describe(annotation: Any, metadata: list[Any] | None = None) -> str:
    """The values of a type, in words; `metadata` holds bounds and validators."""
    metadata = metadata or []
    if schedules := [item.words for item in metadata if hasattr(item, "words")]:
        return str(schedules[-1])
    if get_origin(annotation) is not None:
        return _describe_generic(annotation, metadata)
    if isinstance(annotation, type) and issubclass(annotation, UseSpec):
        return "a name or {use: name, key: value}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "keys and values"
    pattern = next((item.pattern for item in metadata if getattr(item, "pattern", None)), None)
    word = _WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))
    bounds = describe_bounds(metadata) if annotation in (int, float) else ""
    return word + bounds + (f" of the form {pattern}" if pattern else "")


def _describe_generic(annotation: Any, metadata: list[Any]) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        own = [item for entry in args[1:] for item in getattr(entry, "metadata", [entry])]
        words = describe(args[0], [*own, *metadata])
    elif origin in (Union, types.UnionType):
        kinds = [arg for arg in args if arg is not int or float not in args]
        words = _joined([describe(arg, metadata) for arg in kinds])
    elif origin is Literal:
        words = _joined([json.dumps(choice) for choice in args])
    elif origin is tuple and args[-1] is not ...:
        words = f"a list of {len(args)}: {', '.join(describe(arg) for arg in args)}"
    elif origin in (tuple, list):
        words = f"a list, each item {describe(args[0])}"
    elif origin is dict and args[1] is not Any:
        words = f"keys, each with {describe(args[1])}"
    else:
        words = _WORDS.get(origin, str(annotation))
    return words


def describe_bounds(metadata: list[Any]) -> str:
    """`` from 0 to 1`` or `` above 0``; without bounds beyond `MOST`."""
    bounds = {
        name: limit
        for item in metadata
        for name in _BOUNDS
        if (limit := getattr(item, name, None)) is not None and abs(limit) < MOST
    }
    if {"ge", "le"} <= bounds.keys():
        return f" from {bounds['ge']} to {bounds['le']}"
    words = [f"{_BOUNDS[name]} {limit}" for name, limit in bounds.items()]
    return " " + " and ".join(words) if words else ""


def _joined(words: list[str]) -> str:
    distinct = list(dict.fromkeys(words))
    return " or ".join([", ".join(distinct[:-1]), distinct[-1]] if distinct[1:] else distinct)


def describe_value(value: Any) -> str:
    """A value as in a file, with its kind if that is not obvious."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, dict):
        return "keys and values" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        text = repr(list(value))
        return text if len(text) < 40 else f"a list of {len(value)}"
    if isinstance(value, str):
        return f"the text {value!r}" if len(value) < 80 else f"the text {value[:76]!r}..."
    text = repr(value)
    return text if len(text) < 40 else f"{text[:36]}..."


def hint(expected: str, annotation: Any, value: Any) -> str:
    """`` - did you mean ...?`` for a value of the wrong type, or nothing."""
    if not isinstance(value, str):
        return ""
    choices = [choice for choice in _choices(annotation) if isinstance(choice, str)]
    if choices and (near := suggestion(value, choices)):
        return near
    lowered = value.lower()
    if "true or false" in expected and lowered in ("yes", "on", "no", "off", "true", "false"):
        return f" - did you mean {'true' if lowered in ('yes', 'on', 'true') else 'false'}?"
    return _number_hint(value) if "number" in expected else ""


def _number_hint(value: str) -> str:
    meant = parse_scalar(value)
    if isinstance(meant, (int, float)) and not isinstance(meant, bool):
        return f" - did you mean {value}, without quotes?"
    stripped = value.lstrip("0")
    if value.isdecimal() and stripped:
        return f" - did you mean {stripped}? A leading zero makes it text"
    return ""


def _choices(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [choice for arg in get_args(annotation) for choice in _choices(arg)]
