"""What all sections of an experiment file have in common.

Owns: `Section`, the base of every section, the ways to name code (`UseSpec`, and `CodeSection` for
sections with further keys), and the type `Schedule` of numbers that change during a run. Must not
know: any section (schema.py), nor the value of a schedule at a step (`value_at`).
"""

from collections.abc import Collection
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused, strings under the fields are docs."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """A field that a subclass only gives another default keeps its documentation."""
        for base in cls.__mro__[1:]:
            for name, field in getattr(base, "model_fields", {}).items():
                own = cls.model_fields[name]
                own.description = own.description or field.description

    @model_validator(mode="before")
    @classmethod
    def _from_plain(cls, data: Any) -> Any:
        """What YAML cannot say: ``1e6`` for a whole number is an int, a list for a tuple is one."""
        if not isinstance(data, dict):
            return data
        return {key: _adapted(value, cls.model_fields.get(key)) for key, value in data.items()}


def _adapted(value: Any, field: FieldInfo | None) -> Any:
    if field is None:
        return value
    types = get_args(field.annotation) or (field.annotation,)
    if isinstance(value, float) and value.is_integer() and int in types and float not in types:
        return int(value)
    wants_tuple = tuple in (get_origin(field.annotation), *map(get_origin, types))
    return _as_tuple(value) if wants_tuple else value


def _as_tuple(value: Any) -> Any:
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list) else value


def _as_one_of_many(value: Any) -> Any:
    return (value,) if isinstance(value, str | dict) else value


Count = Annotated[int, Field(ge=1)]
"""A whole number of at least one."""


class UseSpec(Section):
    """A class or function and its arguments: ``name``, or ``{use: name, key: value, ...}``."""

    use: str
    """A registered name, or an import path "package.module:attribute"."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments; in a file they stand beside `use`."""

    @model_validator(mode="before")
    @classmethod
    def _gather_kwargs(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"use": data}
        return _gathered(data, known=("use",))

    def to_plain(self) -> Any:
        """The shortest form that a file may hold for this object."""
        if not self.kwargs:
            return self.use
        if self.kwargs.keys() & {"use", "kwargs"}:
            return {"use": self.use, "kwargs": self.kwargs}
        return {"use": self.use, **self.kwargs}


class CodeSection(Section):
    """A section that may name the user's code; keys that are no fields are that code's arguments.

    Subclasses have the fields `use`, an import path or None, and `kwargs`.
    """

    @model_validator(mode="before")
    @classmethod
    def _gather_kwargs(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"use": data}
        if not isinstance(data, dict) or data.get("use") is None:
            return data
        return _gathered(data, known=cls.model_fields.keys() - {"kwargs"})


def _gathered(data: Any, known: Collection[str]) -> Any:
    """Move the keys of a ``{use: ..., key: value}`` mapping that are not `known` into `kwargs`."""
    if not isinstance(data, dict) or not isinstance(data.get("kwargs", {}), dict):
        return data
    own = {key: value for key, value in data.items() if key in known}
    extra = {key: value for key, value in data.items() if key not in known and key != "kwargs"}
    return {**own, "kwargs": {**data.get("kwargs", {}), **extra}}


UseSpecs = Annotated[tuple[UseSpec, ...], BeforeValidator(_as_one_of_many)]
"""Several classes or functions in their order; a single one needs no list around it."""


def check_schedule(value: Any) -> Any:
    """Turn ``[[env_steps, value], ...]`` into tuples; errors name the item that is wrong."""
    if not isinstance(value, (list, tuple)):
        return value
    points: list[tuple[int, float]] = []
    if not value:
        raise _schedule_error("a schedule needs at least one [env_steps, value] pair", [])
    for i, point in enumerate(value):
        if not isinstance(point, (list, tuple)) or len(point) != 2:
            raise _schedule_error(f"expected a pair [env_steps, value], got {point!r}", [i])
        for j, number in enumerate(point):
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise _schedule_error(f"expected a number, got {number!r}", [i, j])
        if not float(point[0]).is_integer() or point[0] < 0:
            raise _schedule_error(f"env_steps is a whole number, got {point[0]!r}", [i, 0])
        if i == 0 and point[0] != 0:
            raise _schedule_error(f"a schedule starts at env step 0, not at {point[0]}", [0, 0])
        if i and point[0] <= points[-1][0]:
            message = f"env steps must rise: {point[0]} follows {points[-1][0]}"
            raise _schedule_error(message, [i, 0])
        points.append((int(point[0]), float(point[1])))
    return tuple(points)


def _schedule_error(message: str, at: list[int]) -> PydanticCustomError:
    return PydanticCustomError("schedule", "{message}", {"message": message, "at": at})


Schedule = Annotated[float | tuple[tuple[int, float], ...], BeforeValidator(check_schedule)]
"""A number, or ``[[env_steps, value], ...]``: linear between points, constant after the last."""
