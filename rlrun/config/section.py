"""The base of all sections of an experiment file.

Owns: `Section`, the base of every section, the kinds of numbers, and the ways to name code
(`CodeSection`, and `UseSpec`, which has no other keys). Must not know: any section
(schema.py), nor numbers that change during a run (schedules.py).
"""

import types
from collections.abc import Iterable
from copy import deepcopy
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rlrun.config.yaml_tree import with_keys


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused, strings under the fields are docs."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        validate_default=True,  # of the user's own `Training` classes
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
        if not isinstance(data, dict):
            return data
        fields = cls.model_fields
        return {
            key: _adapted(value, fields[key].annotation) if key in fields else value
            for key, value in data.items()
        }


def changed_settings(section: Section, keys: Iterable[str]) -> list[str]:
    """Those of the keys that a section has with another value than the default."""
    fields = type(section).model_fields
    return [
        key
        for key in keys
        if key in fields
        and getattr(section, key) != fields[key].get_default(call_default_factory=True)
    ]


def _adapted(value: Any, annotation: Any) -> Any:
    """A value of a file, converted for this type: ``1e6`` to a whole number, a list to a tuple."""
    is_union = get_origin(annotation) in (Union, types.UnionType)
    members = get_args(annotation) if is_union else (annotation,)
    kinds = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in members]
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)
    items = next((get_args(kind) for kind in kinds if get_origin(kind) is tuple), None)
    if items is None or not isinstance(value, list):
        return value
    repeated = items[-1] is ...
    return tuple(
        _adapted(item, items[0] if repeated else items[min(i, len(items) - 1)])
        for i, item in enumerate(value)
    )


MOST = 10**9
"""The greatest number that settings take, unless their meaning sets a tighter bound."""

Count = Annotated[int, Field(ge=1, le=MOST)]
"""A whole number of at least 1."""
Whole = Annotated[int, Field(ge=0, le=MOST)]
"""A whole number of at least 0."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed of random numbers."""
Positive = Annotated[float, Field(gt=0, le=MOST)]
"""A number above 0."""
NonNegative = Annotated[float, Field(ge=0, le=MOST)]
"""A number of at least 0."""
Epsilon = Annotated[float, Field(ge=1e-20, le=1)]
"""A number that keeps a divisor from 0, in single precision too."""
Fraction = Annotated[float, Field(ge=0, le=1)]
"""A number from 0 to 1."""
Real = Annotated[float, Field(ge=-MOST, le=MOST)]
"""A number of either sign."""


class CodeSection(Section):
    """A section that may name code; keys that are not its own are then arguments of that code."""

    use: str | None = None
    """A registered name, or an import path "package.module:attribute"."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments; in a file they stand beside `use`."""

    @model_validator(mode="before")
    @classmethod
    def _gather_kwargs(cls, data: Any) -> Any:
        if isinstance(data, str):
            return {"use": data}
        if not isinstance(data, dict) or not isinstance(data.get("kwargs", {}), dict):
            return data
        fields = cls.model_fields
        if data.get("use") is None and not fields["use"].is_required():
            if data.get("kwargs"):
                raise ValueError("kwargs are arguments of the code that `use` names; set `use`")
            return data
        own = {key: value for key, value in data.items() if key in fields}
        extra = {key: value for key, value in data.items() if key not in fields}
        kwargs = {**data.get("kwargs", {}), **extra}
        return {**own, "kwargs": {key: with_keys(value) for key, value in kwargs.items()}}

    def arguments(self) -> dict[str, Any]:
        """Copies of the keyword arguments, which the code may keep and change."""
        return deepcopy(self.kwargs)

    def to_plain(self) -> Any:
        """The shortest form that a file may hold for this object."""
        fields = type(self).model_fields
        own = {name: getattr(self, name) for name in fields if name != "kwargs"}
        if not self.kwargs:
            return self.use if own.keys() == {"use"} else own
        if self.use is None or self.kwargs.keys() & fields.keys():
            return {**own, "kwargs": self.kwargs}
        return {**own, **self.kwargs}


class UseSpec(CodeSection):
    """A class or function and its arguments: ``name``, or ``{use: name, key: value, ...}``."""

    use: str
    """A registered name, or an import path "package.module:attribute"."""


UseSpecs = Annotated[
    tuple[UseSpec, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str | dict) else value),
]
"""Several classes or functions in their order; a single one needs no list around it."""
