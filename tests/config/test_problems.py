"""Tracebacks of the user's code: whole chains of errors, without frames of rlrun and libraries."""

import pytest

from rlrun.config.problems import user_traceback
from rlrun.config.registry import ImportPathError, import_object


def caught(function, *arguments):
    """What a call raises, without the frame of this function."""
    with pytest.raises(Exception) as info:  # noqa: PT011 - any at all
        function(*arguments)
    return info.value.with_traceback(info.value.__traceback__.tb_next)


def of_module(name, source):
    """The function `f` of a module of this name."""
    found = {"__name__": name, "ValueError": ValueError}
    exec(compile(source, f"{name}.py", "exec"), found)
    return found["f"]


def from_a_cause():
    raise RuntimeError("simulator gone") from KeyError("socket")


def while_another_is_handled():
    try:
        {}["port"]
    except KeyError:
        raise RuntimeError("simulator gone")  # noqa: B904 - on purpose


def grouped():
    errors = [caught(while_another_is_handled), caught(from_a_cause)]
    raise ExceptionGroup("both simulators", errors)


@pytest.mark.parametrize(
    ("function", "lines"),
    [
        (from_a_cause, ["KeyError: 'socket'", "direct cause", "RuntimeError: simulator gone"]),
        (while_another_is_handled, ["KeyError: 'port'", "During handling", "RuntimeError: sim"]),
        (grouped, ["both simulators", "KeyError: 'port'", "simulator gone", "KeyError: 'socket'"]),
    ],
)
def test_the_whole_chain_is_shown_in_its_order(function, lines):
    library = of_module("ray.worker", "def f(code): code()")
    text = user_traceback(caught(library, function))
    places = [text.index(line) for line in lines]
    assert places == sorted(places)
    assert f"in {function.__name__}" in text
    assert "ray.worker" not in text


def test_each_error_of_a_chain_is_without_the_frames_of_libraries():
    wrap = (
        "def f(code):\n    try: code()\n    except Exception as e: raise ValueError('ours') from e"
    )
    text = user_traceback(caught(of_module("rlrun.some", wrap), while_another_is_handled))
    assert "rlrun.some" not in text
    assert text.endswith("following exception:\n\nValueError: ours\n")
    handling = "def f(code):\n    try: {}['cached']\n    except Exception: code()"
    text = user_traceback(caught(of_module("rlrun.some", handling), from_a_cause))
    assert "cached" not in text
    assert text.startswith("KeyError: 'socket'\n\n")


def test_a_failure_without_code_of_the_users_keeps_all_frames():
    error = caught(import_object, "nothing")
    assert isinstance(error, ImportPathError)
    assert "in import_object" in user_traceback(error)
