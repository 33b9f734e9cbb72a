"""metrics.jsonl: exact numbers, whole lines, one set of keys."""

import errno
import json
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlrun.data.results import (
    addresses,
    flat,
    flat_numbers,
    lookup,
    number_at,
    plain_row,
    with_keys_of,
)
from rlrun.experiment.report.sinks import (
    MOST_WAITING_BYTES,
    DiskRefusedError,
    JsonlSink,
    json_line,
    read_rows,
    repair,
)


@given(st.floats())
def test_floats_are_exact_and_never_nan(value):
    row = json.loads(json_line(plain_row({"x": value, "y": np.float64(value)})))
    expected = value if math.isfinite(value) else None
    assert row == {"x": expected, "y": expected}


def test_numpy_numbers_become_plain():
    row = plain_row({"a": np.int64(3), "b": {"c": np.float32(0.5), "d": np.array([1, 2])}, 5: None})
    assert row == {"a": 3, "b": {"c": 0.5, "d": [1, 2]}, "5": None}
    assert type(row["a"]) is int


def test_integers_beyond_the_largest_float_are_infinities():
    assert plain_row({"a": 10**5000, "b": [-(10**400)], "c": 10**300, "d": True}) == {
        "a": None,
        "b": [None],
        "c": 10**300,
        "d": True,
    }


def test_numbers_of_torch_are_numbers():
    result = {"a": torch.tensor(0.5, requires_grad=True), "b": torch.tensor(math.nan)}
    assert plain_row(result) == {"a": 0.5, "b": None}
    assert number_at(result, "a") == 0.5
    assert flat_numbers({"mine": result}) == {"mine/a": 0.5}


def test_addresses_and_numbers():
    row = {"a": {"b": 1, "c": {}}, "d/e": 2, "f": None, "g": True, "h": 10**400}
    assert list(addresses(row)) == ["a/b", "d/e", "f", "g", "h"]
    assert lookup(row, "a/b") == 1
    assert lookup(row, "d/e") == 2
    numbers = [number_at(row, key) for key in ("a/b", "f", "g", "h", "a", "x")]
    assert numbers == [1.0, None, None, None, None, None]
    with pytest.raises(KeyError):
        lookup(row, "a/b/c")


def test_keys_that_are_no_text_are_flattened_as_text():
    row = {"a": {1: 2.0, "b/c": None}, True: 3}
    assert flat(row, ".") == {"a.1": 2.0, "a.b.c": None, "True": 3}
    assert flat_numbers(row) == {"a/1": 2.0, "True": 3.0}


def test_every_address_is_found_where_keys_contain_slashes():
    row = {"stop": {"evaluation/mean": 1, "a": {"b/c/d": 2}}, "a/b": {"c": 3}, "a": {"b": {"d": 4}}}
    assert [lookup(row, address) for address in addresses(row)] == [1, 2, 3, 4]
    with pytest.raises(KeyError, match="stop/evaluation/missing"):
        lookup(row, "stop/evaluation/missing")


def test_rows_take_the_keys_of_the_first():
    first = {"a": 1, "b": {"c": 2, "d": 3}}
    assert with_keys_of(first, {"b": {"d": 5}}) == {"a": None, "b": {"c": None, "d": 5}}
    assert list(with_keys_of(first, {"z": 9, "a": 1, "b": None})) == ["a", "b", "z"]


def test_every_line_has_the_keys_of_the_first(tmp_path, caplog):
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink.write({"training_iteration": 1, "x": {"y": 1.0}})
    sink.write({"training_iteration": 2})
    sink.close()
    reopened = JsonlSink(tmp_path / "m.jsonl")
    reopened.write({"training_iteration": 3, "x": {}, "late": 1})
    reopened.close()
    rows = list(read_rows(tmp_path / "m.jsonl"))
    assert rows[1] == {"training_iteration": 2, "x": {"y": None}}
    assert rows[2] == {"training_iteration": 3, "x": {"y": None}, "late": 1}
    assert "late" in caplog.text


def test_a_key_that_comes_later_stays_in_every_line_also_of_a_resumed_run(tmp_path, caplog):
    path = tmp_path / "m.jsonl"
    brings = {"training_iteration": 2, "evaluation": {"n": 1, "x": 0.5, "custom_metrics": {"a": 1}}}
    sink = JsonlSink(path)
    sink.write({"training_iteration": 1, "evaluation": {"n": None}})
    sink.write(brings)
    sink.write({"training_iteration": 3, "evaluation": {"n": None}})
    sink.close()
    reopened = JsonlSink(path)
    reopened.write({"training_iteration": 4, "evaluation": {"n": None}})
    reopened.write(brings | {"training_iteration": 5})
    reopened.close()
    nothing = {"n": None, "x": None, "custom_metrics": {"a": None}}
    assert [row["evaluation"] for row in read_rows(path)][2:4] == [nothing, nothing]
    assert not caplog.text
    repair(path, {"training_iteration": 6, "evaluation": {"n": None}})
    assert list(read_rows(path))[-1]["evaluation"] == nothing


def test_keys_of_a_policy_that_joins_are_not_late(tmp_path, caplog):
    sink = JsonlSink(tmp_path / "m.jsonl")
    returns = {"policy_return_mean": {"main": 1.0}}
    sink.write({"training_iteration": 1, "env_runners": returns, "learners": {"main": {"lr": 0.1}}})
    joined = {"policy_return_mean": {"main": 1.0, "main_1": 2.0}}
    learners = {"main": {"lr": 0.1}, "main_1": {"lr": 0.1}}
    sink.write({"training_iteration": 2, "env_runners": joined, "learners": learners})
    sink.close()
    assert list(read_rows(tmp_path / "m.jsonl"))[1]["env_runners"] == joined
    assert not caplog.text


def test_a_full_disk_leaves_whole_lines_and_loses_none_until_too_many_wait(tmp_path, monkeypatch):
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink.write({"training_iteration": 1})
    real = os.write

    def full(descriptor, data):
        real(descriptor, bytes(data)[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        sink.write({"training_iteration": 2})
    with pytest.raises(DiskRefusedError, match=r"m\.jsonl: the last 1 results are lost: No space"):
        sink.finish()
    with pytest.raises(DiskRefusedError, match="the last 2 results"):
        sink.write({"training_iteration": 3, "text": "x" * MOST_WAITING_BYTES})
    assert path.read_bytes() == b'{"training_iteration": 1}\n'
    monkeypatch.undo()
    sink.write({"training_iteration": 4})
    sink.close()
    assert lines(path) == [1, 2, 3, 4]


def lines(path):
    return [row["training_iteration"] for row in read_rows(path)]


def test_repair_drops_later_rows_and_adds_a_lost_one(tmp_path):
    path = tmp_path / "m.jsonl"
    rows = [{"training_iteration": i, "x": i} for i in range(1, 6)]
    path.write_bytes(b"".join(map(json_line, rows)) + b'{"training_iter')
    repair(path, rows[2])
    assert lines(path) == [1, 2, 3]
    path.write_bytes(b"".join(map(json_line, rows[:2])))
    repair(path, rows[2])
    assert list(read_rows(path)) == rows[:3]
    repair(path, None)
    assert path.read_bytes() == b""
    repair(tmp_path / "missing.jsonl", rows[0])
    assert lines(tmp_path / "missing.jsonl") == [1]


def test_results_of_another_run_that_goes_on_here_are_not_missed(tmp_path, caplog):
    """As where a trial of population-based training takes over another one's checkpoint."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(json_line({"training_iteration": 1}))
    repair(path, {"training_iteration": 4}, whole=False)
    assert lines(path) == [1, 4]
    assert not caplog.text


@pytest.mark.parametrize(
    "damaged", [b"null", b'{"training_iteration": "2"}', b"\xff{", b'{"x": NaN}', b"[" * 99_999]
)
def test_a_damaged_line_is_named_and_no_other_is_lost(tmp_path, caplog, damaged):
    path = tmp_path / "m.jsonl"
    rows = [{"training_iteration": i} for i in (1, 3, 4)]
    good = [json_line(row) for row in rows]
    path.write_bytes(good[0] + damaged + b"\n" + good[1] + good[2])
    repair(path, rows[2])
    assert "m.jsonl:2: the line is damaged" in caplog.text
    assert list(read_rows(path)) == rows


def test_many_damaged_lines_are_one_warning(tmp_path, caplog):
    path = tmp_path / "m.jsonl"
    row = {"training_iteration": 1}
    path.write_bytes(json_line(row) + b"damaged\n" * 3)
    assert list(read_rows(path)) == [row]
    (message,) = caplog.messages
    assert message == f"{path}:2: the line is damaged and skipped, as are 2 more"
