"""Validates plain data by the schema: returns the experiment, or all its problems.

Owns: converting pydantic's errors to findings with the address of the value; messages about unknown
keys. Must not know: files (layers.py), nor relations between fields (checks.py).
"""

from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rlrun.config import retired
from rlrun.config.describe import describe, describe_field, describe_value, hint
from rlrun.config.problems import Finding, Path, join
from rlrun.config.registry import ImportPathError, algorithm_class, nearest
from rlrun.config.schema import ExperimentConfig, TrainingConfig, sections
from rlrun.config.section import MOST


def validate(data: Any) -> tuple[ExperimentConfig | None, list[Finding]]:
    """The experiment that plain data describes, or its problems in the schema's order."""
    if not isinstance(data, dict):
        return None, [Finding((), f"expected keys and values, got {describe_value(data)}")]
    known = sections(TrainingConfig).keys() - {"", "env"}
    data = {key: {} if value is None and key in known else value for key, value in data.items()}
    training_class, findings = _training_class(data.get("algorithm"))
    given = data.get("training", {})
    if training_class is None and isinstance(given, dict):  # what all algorithms have is known
        given = {key: given[key] for key in TrainingConfig.model_fields if key in given}
    schema = training_class or TrainingConfig
    training, problems = validated(schema, given, ("training",), training_class)
    findings += problems
    # A wrong section is replaced, so that the others are validated too.
    whole = {**data, "training": training or TrainingConfig()}
    experiment, problems = validated(ExperimentConfig, whole, (), training_class)
    reported = [finding.path for finding in findings]
    findings += [finding for finding in problems if finding.path not in reported]
    return (None if findings else experiment), findings


def salvage(data: Any, findings: list[Finding]) -> ExperimentConfig | None:
    """The valid sections of invalid data, with placeholders for the others, for further checks.

    None if even that is invalid. Of `stop` and `multi_agent` only what is wrong is left out; ignore
    further findings in other sections that have some already. The algorithm has its name, whether
    there is one of that name or not.
    """
    if not isinstance(data, dict):
        return None
    wrong = {finding.path[0] for finding in findings if finding.path}
    kept = {key: value for key, value in data.items() if key not in wrong and value is not None}
    parts = {key: data[key] for key in ("stop", "multi_agent") if key in wrong and key in data}
    kept |= _without(parts, [finding.path for finding in findings])
    if wrong & {"evaluation", "callbacks"}:  # The keys of the result depend on these.
        kept.pop("stop", None)
    name = data.get("algorithm", "")
    training_class = _training_class(name)[0] or TrainingConfig
    training, _ = validated(training_class, kept.get("training", {}), (), None)
    known = {"algorithm": str(name), "training": training or TrainingConfig()}
    return validated(ExperimentConfig, {"env": "", **kept, **known}, (), None)[0]


def _without(data: dict[Any, Any], paths: list[Path]) -> dict[Any, Any]:
    """A mapping without what is at these paths; of what is no mapping, nothing is left."""
    inside = {key: [path[1:] for path in paths if path[:1] == (key,)] for key in data}
    return {
        key: _without(value, inside[key]) if inside[key] else value
        for key, value in data.items()
        if not inside[key] or (isinstance(value, dict) and () not in inside[key])
    }


def _training_class(name: Any) -> tuple[type[TrainingConfig] | None, list[Finding]]:
    if not isinstance(name, str):
        return None, []  # The schema itself reports the missing or wrong name.
    try:
        found = algorithm_class(name)
    except ImportPathError as error:
        return None, [Finding(("algorithm",), str(error))]
    training = getattr(found, "Training", None)
    if isinstance(training, type) and issubclass(training, TrainingConfig):
        return training, []
    message = f"{name} is not an algorithm: it has no Training class derived from TrainingConfig"
    return None, [Finding(("algorithm",), message)]


def validated(
    schema: type[BaseModel], data: Any, prefix: Path, training: type[TrainingConfig] | None
) -> tuple[Any, list[Finding]]:
    """An object of this schema, or its problems.

    Args:
        prefix: address of the section.
        training: the algorithm's own class of the section `training`, if known.
    """
    try:
        return schema.model_validate(data), []
    except ValidationError as error:
        groups: dict[Path, list[Any]] = {}
        for item in error.errors(include_url=False):
            groups.setdefault(_data_path(item, data), []).append(item)
        return None, [
            # The place of an error within a schedule is in its context.
            Finding(
                (*prefix, *path, *items[0].get("ctx", {}).get("at", ())),
                _message(schema, path, items, training),
            )
            if items[0]["type"] != "extra_forbidden"
            else Finding((*prefix, *path), unknown_key((*prefix, *path), training))
            for path, items in groups.items()
        ]


def _data_path(item: Any, data: Any) -> Path:
    """Pydantic's location without the names it gives to the members of a union."""
    path: list[str | int] = []
    for depth, part in enumerate(item["loc"]):
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, (list, tuple)) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        elif isinstance(data, dict) and (item["type"] == "missing" or not depth):
            data = None  # a key that is missing, or whose default is wrong
        else:
            continue
        path.append(part)
    return tuple(path)


def _message(
    schema: type[BaseModel], path: Path, items: list[Any], training: type[TrainingConfig] | None
) -> str:
    first = items[0]
    if first["type"] == "missing":
        return "missing; it has no default"
    if first["type"] in ("schedule", "value_error", "assertion_error"):
        context = first.get("ctx", {})
        return str(context.get("message") or context.get("error") or first["msg"])
    value = first["input"]
    for item in items:
        for bound, words in (("le", "at most"), ("ge", "at least"), ("lt", "a number below")):
            limit = item.get("ctx", {}).get(bound, 0)
            if abs(limit) >= MOST:
                return f"expected {words} {limit:,}, got {describe_value(value)}"
    found = _find_type(schema, path, training)
    if found is None:
        return f"{first['msg'][0].lower()}{first['msg'][1:]}, got {describe_value(value)}"
    expected, annotation = found
    retired_value = retired.VALUES.get((join(path[-1:]), str(value)))
    further = hint(expected, annotation, value) if retired_value is None else f"; {retired_value}"
    return f"expected {expected}, got {describe_value(value)}{further}"


def _find_type(
    schema: type[BaseModel], path: Path, training: type[TrainingConfig] | None
) -> tuple[str, Any] | None:
    """The type of the value at `path`, in words and as such."""
    annotation: Any = schema
    field: FieldInfo | None = None
    for part in path:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(str(part))
            annotation = field.annotation if field else None
        else:
            field, annotation = None, _item_type(annotation, part)
        if part == "training" and annotation is TrainingConfig:
            annotation = training
        if annotation is None:
            return None
    return (describe_field(field) if field else describe(annotation)), annotation


def _item_type(annotation: Any, part: str | int) -> Any:
    """The type of one item of a tuple or of one value of a dict; None where there is none."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return args[1]
    if origin is tuple and isinstance(part, int):
        if args[-1] is ...:
            return args[0]
        return args[part] if part < len(args) else None
    members = (_item_type(arg, part) for arg in args if get_origin(arg) in (tuple, dict))
    return next(members, None)


def unknown_key(path: Path, training: type[TrainingConfig] | None = None) -> str:
    """The message about a key not in its section: of another library, misplaced or misspelt."""
    known = sections(training or TrainingConfig)
    section, key = ".".join(str(part) for part in path[:-1]), str(path[-1])
    if training is None and section == "training":
        return "unknown key"
    if (advice := retired.advice(key)) is not None:
        return advice
    elsewhere = [name for name, schema in known.items() if key in schema.model_fields]
    elsewhere = [] if key in ("use", "kwargs") else elsewhere
    if elsewhere:
        places = " or ".join(owner or "the top of the file" for owner in elsewhere)
        here = f"in section {section}" if section else "at the top of the file"
        address = f"{elsewhere[0]}.{key}".lstrip(".")
        return f"unknown key {here}; it belongs to {places} - did you mean {address}?"
    here = f"unknown key in section {section}" if section else "unknown top-level key"
    own = known.get(section)
    if own is not None and (near := nearest(key, own.model_fields)):
        return f"{here} - did you mean {near}?"
    addresses = {
        field: f"{name}.{field}".lstrip(".") for name in known for field in known[name].model_fields
    }
    near = nearest(key, addresses, cutoff=0.75)
    return f"{here} - did you mean {addresses[near]}?" if near else here
