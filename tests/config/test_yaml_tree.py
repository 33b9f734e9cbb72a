"""What a scalar means, where keys stand, and what broken files say."""

import math
import sys

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.config.dump import flow, to_plain
from rlrun.config.problems import ConfigError, Origin
from rlrun.config.section import UseSpec
from rlrun.config.yaml_tree import from_plain, parse_yaml

SCALARS = [
    ("1e-4", 1e-4),
    ("1e6", 1e6),
    ("1E+2", 100.0),
    ("300_000", 300_000),
    ("-3", -3),
    ("+4", 4),
    ("0", 0),
    ("-0.5", -0.5),
    (".5", 0.5),
    ("5.", 5.0),
    (".inf", math.inf),
    ("-.inf", -math.inf),
    ("012", "012"),
    ("0x10", "0x10"),
    ("0o7", "0o7"),
    ("0b1", "0b1"),
    ("1:30", "1:30"),
    ("1__0", "1__0"),
    ("_1", "_1"),
    ("1e", "1e"),
    ("1.2.3", "1.2.3"),
    ("2026-01-01", "2026-01-01"),
    ("on", "on"),
    ("off", "off"),
    ("yes", "yes"),
    ("no", "no"),
    ("y", "y"),
    ("true", True),
    ("False", False),
    ("null", None),
    ("~", None),
    ("", None),
    ("'3'", "3"),
    ('"true"', "true"),
    ("!!str 12", "12"),
    ("ALE/Pong-v5", "ALE/Pong-v5"),
    ("my.envs:Maze", "my.envs:Maze"),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_scalar(text, value):
    found = parse_yaml(f"key: {text}", "f.yaml").plain()["key"]
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_number():
    assert math.isnan(parse_yaml("a: .nan", "f").plain()["a"])


def test_positions_are_those_of_the_keys():
    text = "a: 1\nb:\n  c: {d: 2, e: [5, {f: 6}]}\n"
    tree = parse_yaml(text, "f.yaml")

    def at(*path):
        node = tree
        for part in path:
            below = node.child(part)
            assert below is not None
            node = below
        return str(node.origin)

    assert at("a") == "f.yaml:1:1"
    assert at("b", "c") == "f.yaml:3:3"
    assert at("b", "c", "e") == "f.yaml:3:13"
    assert at("b", "c", "e", 0) == "f.yaml:3:17"
    assert at("b", "c", "e", 1, "f") == "f.yaml:3:21"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\n\tb: 2", "f:2:1: not valid YAML: a tab, where YAML expects spaces"),
        ("a: b: c", "f:1:5: not valid YAML: mapping values are not allowed here"),
        ("--- 1\n--- 2", "f:2:1: not valid YAML: a second document (---); one file holds one"),
        ("a: 'x", "f:1:6: not valid YAML: found unexpected end of stream"),
        ("a: 1\nbc: \x00", "f:2:5: not valid YAML: special characters are not allowed"),
        ("a: !!python/object:os.system x", "f:1:1: a: tags such as"),
        ("a: !mine x", "f:1:1: a: tags such as !mine are refused"),
        ("a: &x [*x]", "f:1:4: a[0]: holds an alias of itself"),
        ("[1]: 2", "f:1:1: a key must be a plain word"),
    ],
)
def test_broken_file_is_one_clear_line(text, line):
    with pytest.raises(ConfigError) as caught:
        parse_yaml(text, "f")
    assert len(caught.value.problems) == 1
    assert caught.value.render().startswith(line)


def test_every_duplicate_key_is_reported():
    with pytest.raises(ConfigError) as caught:
        parse_yaml("a: 1\na: 2\nb: {c: 1, c: 2}", "f")
    assert caught.value.render().splitlines() == [
        "f:2:1: a: duplicate key, given first at line 1",
        "f:3:11: b.c: duplicate key, given first at line 3",
    ]


def test_an_alias_bomb_is_refused():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match="more than 10000 values"):
        parse_yaml("\n".join(lines), "f")


ARGUMENTS = {"use": "x:y", "rewards": {1: 0.5, False: [{None: "on"}], "2": {-0.5: 1}}}


def test_keys_of_arguments_are_what_yaml_and_python_mean_by_them():
    text = "{use: 'x:y', rewards: {1: 0.5, false: [{~: on}], '2': {-0.5: 1}}}"
    for tree in (parse_yaml(text, "f"), from_plain(ARGUMENTS, Origin("python"))):
        assert all(isinstance(key, str) for key in tree.child("rewards").value)
        spec = UseSpec.model_validate(tree.plain())
        assert spec.kwargs == {"rewards": ARGUMENTS["rewards"]}
        assert UseSpec.model_validate(parse_yaml(flow(to_plain(spec)), "f").plain()) == spec


def test_values_of_numpy_become_plain_and_what_a_file_cannot_hold_is_refused():
    given = {"a": np.int64(5), np.int64(7): None, "b": (np.float32(0.5), np.zeros((2, 1)))}
    plain = from_plain(given, Origin("python")).plain()
    assert repr(plain) == "{'a': 5, '7': None, 'b': (0.5, [[0.0], [0.0]])}"
    for value in ({1, 2}, 1 + 2j, object, b"x"):
        with pytest.raises(
            ConfigError, match=r"^python: env\.a\[1\]: expected what a file can hold"
        ):
            from_plain({"env": {"a": [1, value]}}, Origin("python"))
    with pytest.raises(
        ConfigError, match=r"^python: env: a key must be text or a number, got \(0, 1"
    ):
        from_plain({"env": {(0, 1): 2}}, Origin("python"))
    with pytest.raises(ConfigError, match=r"^python: env: holds a key as text and as a number"):
        from_plain({"env": {1: 2, "1": 3}}, Origin("python"))


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner),
    max_leaves=10,
)


@settings(max_examples=40)
@given(_PLAIN)
def test_reads_what_another_writer_wrote(value):
    text = yaml.safe_dump({"key": value}, allow_unicode=False)
    assert parse_yaml(text, "f").plain() == {"key": value}


def test_a_file_is_read_in_few_calls():
    text = "".join(f"section_{i}: {{number: {i}, list: [a, 'b', 1e-4]}}\n" for i in range(20))
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        parse_yaml(text, "f")
    finally:
        sys.setprofile(previous)
    assert calls / 160 < 40, "calls of Python per key or value; libyaml makes the others"
