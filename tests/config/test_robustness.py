"""For any content of a file or a command line the answer is an experiment or a ConfigError."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from fake_algorithm import FakeTraining
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlrun.config.layers import apply_overrides
from rlrun.config.loader import resolve
from rlrun.config.problems import ConfigError, Origin
from rlrun.config.registry import ALGORITHMS, algorithm_class
from rlrun.config.schema import sections
from rlrun.config.yaml_tree import from_plain, parse_yaml

SECTIONS = sections(FakeTraining)
TOP = sorted(SECTIONS[""].model_fields)
KEYS = sorted({name for schema in SECTIONS.values() for name in schema.model_fields})

_VALUES: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**7)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["auto", "a:b", "CartPole-v1", "fake_algorithm:Fake", "fake_algorithm:Maze"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
_FILES = st.fixed_dictionaries(
    {},
    optional={
        "algorithm": st.just("fake_algorithm:Fake") | _VALUES,
        "env": st.just("CartPole-v1") | _VALUES,
        **{
            name: st.dictionaries(st.sampled_from(sorted(SECTIONS[name].model_fields)), _VALUES)
            if name in SECTIONS
            else _VALUES
            for name in TOP
            if name not in ("algorithm", "env")
        },
    },
)
_slow_first = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


def problems_of(call: Callable[[], object]):
    """What is wrong, at least one thing if anything; every other error fails the test."""
    try:
        call()
    except ConfigError as error:
        return error.problems or pytest.fail("an error without a problem")
    return ()


@_slow_first
@given(_FILES)
def test_any_values_give_an_experiment_or_problems(data):
    problems = problems_of(lambda: resolve(from_plain(data, Origin("f"))))
    assert all(problem.message and "\n" not in problem.message for problem in problems)


@_slow_first
@given(st.lists(st.tuples(st.lists(st.sampled_from([*KEYS, "0", "x"])), st.text()), max_size=3))
def test_any_overrides_give_a_tree_and_problems(pairs):
    tree = parse_yaml("callbacks: [a]\nenv: b\nmodel: {hidden: [1, 2]}\nseed: 1", "f")
    overrides = [f"{'.'.join(path)}={text}" for path, text in pairs]
    tree, problems = apply_overrides(tree, overrides)
    assert isinstance(tree.value, dict)
    assert len(problems) <= len(overrides) or any("duplicate" in p.message for p in problems)


@given(st.text())
def test_any_text_gives_a_tree_or_problems(text):
    problems = problems_of(lambda: parse_yaml(text, "f").plain())
    assert all(problem.origin.line for problem in problems)


def _numeric_keys():
    """Algorithm, section and key of everything that takes a number, or items that are numbers."""
    for algorithm in ALGORITHMS:
        for section, schema in sections(algorithm_class(algorithm).Training).items():
            for key, field in schema.model_fields.items():
                if section not in ("", "env") and re.search("int|float", str(field.annotation)):
                    yield algorithm, section, key


EXTREMES = (0, -1, 1, 10**10, 10**400, 1e308, -1e308, 5e-324, math.inf, -math.inf, math.nan)
FORMS = (
    lambda number: number,
    lambda number: [number],
    lambda number: [[0, number]],
    lambda number: {"kind": "polynomial", "start": 0, "end": number, "env_steps": 1},
)


@settings(max_examples=400)
@given(st.sampled_from([*_numeric_keys()]), st.sampled_from(EXTREMES), st.sampled_from(FORMS))
def test_numbers_that_make_no_sense_are_refused_at_their_key(place, number, form):
    algorithm, section, key = place
    data = {"algorithm": algorithm, "env": "CartPole-v1", section: {key: form(number)}}
    problems = problems_of(lambda: resolve(from_plain(data, Origin("f"))))
    assert all(problem.key.startswith(section) for problem in problems)
    assert problems or abs(number) <= 1 or (number == 10**10 and key in ("seed", "seeds"))
