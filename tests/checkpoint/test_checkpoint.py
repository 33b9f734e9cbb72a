"""A checkpoint is complete or not there, and every error is one line."""

import errno
import json
import os
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rlrun.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointVersionError,
    read_checkpoint,
    write_checkpoint,
)
from rlrun.checkpoint.checkpoint_folder import (
    CheckpointFolder,
    Pace,
    best_checkpoint,
    newest_checkpoint,
    score_by,
)


def make(iteration=7, mean=1.5, **changes):
    row = {
        "training_iteration": iteration,
        "episode_return_mean": mean,
        "episodes_in_mean": 100,
    }
    fields = {
        "algorithm": "PPO",
        "row": row,
        "state": {"learner": {"m": np.arange(3.0)}, "rng": 2**100},
        "weights": {"pi.0.weight": np.ones((2, 3), np.float32)},
        "config_yaml": "algorithm: PPO\n",
    }
    return Checkpoint(**fields | changes)


def folder(path, keep=2):
    score = score_by("episode_return_mean", "max", smoothing_episodes=100)
    return CheckpointFolder(path, keep=keep, score=score)


@pytest.fixture
def written(tmp_path):
    """Directory of one whole checkpoint."""
    write_checkpoint(tmp_path / "000007", make())
    return tmp_path / "000007"


def change_manifest(directory, **changes):
    manifest = json.loads((directory / "manifest.json").read_text())
    (directory / "manifest.json").write_text(json.dumps(manifest | changes))


def test_a_checkpoint_is_read_as_it_was_written(written):
    found = read_checkpoint(written)
    assert (found.algorithm, found.iteration, found.path) == ("PPO", 7, written)
    assert found.row == make().row
    assert found.state["rng"] == 2**100
    np.testing.assert_array_equal(found.state["learner"]["m"], np.arange(3.0))
    np.testing.assert_array_equal(found.weights["pi.0.weight"], np.ones((2, 3), np.float32))
    assert found.config_yaml == "algorithm: PPO\n"
    assert [path.name for path in written.parent.iterdir()] == ["000007"]


def test_a_replay_buffer_is_left_out_on_request(tmp_path):
    held = {"updates_due": np.arange(2), "buffer": {"obs": np.zeros(1000), "ids": (3, 5)}}
    write_checkpoint(tmp_path, make(state={"algorithm": {"replay": held, "kl": {"a": 0.5}}}))
    whole, rest = read_checkpoint(tmp_path), read_checkpoint(tmp_path, replay=False)
    assert whole.state["algorithm"]["replay"]["buffer"]["ids"] == (3, 5)
    assert rest.state["algorithm"]["replay"].keys() == held.keys()
    assert rest.state["algorithm"]["replay"]["buffer"] is None
    assert rest.state["algorithm"]["replay"]["updates_due"].tolist() == [0, 1]
    assert rest.state["algorithm"]["kl"] == {"a": 0.5}


@pytest.mark.parametrize("name", ["folder", "folder/thesis.txt"])
def test_what_is_no_checkpoint_is_not_replaced_by_one(tmp_path, name):
    """As with a path that is meant as the folder to put checkpoints in."""
    thesis = tmp_path / "folder" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    with pytest.raises(CheckpointError, match=r"holds thesis\.txt,|Not a dir") as caught:
        write_checkpoint(tmp_path / name, make())
    assert caught.value.is_lasting
    assert thesis.read_text() == "years of work"


def test_an_empty_folder_and_an_earlier_checkpoint_are_replaced(written):
    write_checkpoint(written, make(8))
    assert read_checkpoint(written).iteration == 8
    empty = written.parent / "empty"
    empty.mkdir()
    (empty / ".DS_Store").touch()
    write_checkpoint(empty, make())
    assert read_checkpoint(empty).iteration == 7


def test_no_file_is_a_pickle(written):
    for path in written.iterdir():
        assert path.suffix in {".json", ".safetensors", ".yaml"}
        assert not path.read_bytes().startswith((b"\x80", b"PK"))


@pytest.mark.parametrize("name", ["state.json", "weights.safetensors", "manifest.json"])
def test_a_truncated_file_is_named(written, name):
    (written / name).write_bytes((written / name).read_bytes()[:-5])
    with pytest.raises(CheckpointError, match=f"damaged.*{name}|{name}.*damaged") as caught:
        read_checkpoint(written)
    assert "\n" not in str(caught.value)


def flip_last_bit(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_flipped_bit_is_noticed(written):
    flip_last_bit(written / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"sha256 of weights\.safetensors differs"):
        read_checkpoint(written)


def test_a_changed_row_of_the_manifest_is_noticed(written):
    change_manifest(written, row=make().row | {"episode_return_mean": 2.5})
    with pytest.raises(CheckpointError, match=r"damaged: manifest\.json has changed"):
        read_checkpoint(written)


def test_foreign_directories_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        read_checkpoint(tmp_path / "none")
    with pytest.raises(CheckpointError, match="not an rlrun checkpoint: no manifest"):
        read_checkpoint(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": "other"}')
    with pytest.raises(CheckpointError, match="not an rlrun checkpoint"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("version", "says"),
    [(2, "written by an older version of rlrun, in checkpoint format 2"), (99, "newer version")],
)
def test_another_format_version_is_named(written, version, says):
    change_manifest(written, version=version)
    with pytest.raises(CheckpointVersionError, match=says):
        read_checkpoint(written)
    with pytest.raises(CheckpointVersionError, match=says):
        newest_checkpoint(written.parent)


@pytest.mark.parametrize("name", ["000001", "000002"])
@pytest.mark.parametrize("failing_call", range(10))
def test_a_failing_disk_leaves_an_earlier_checkpoint(tmp_path, monkeypatch, failing_call, name):
    """Each fsync and each rename of a write fails once, of the same or of another directory."""
    write_checkpoint(tmp_path / "000001", make(1))
    calls = 0

    def refusing(real):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == failing_call + 1:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", refusing(os.fsync))
    monkeypatch.setattr(os, "rename", refusing(os.rename))
    with suppress(CheckpointError):
        write_checkpoint(tmp_path / name, make(2))
    monkeypatch.undo()
    assert read_checkpoint(tmp_path / "000001").iteration in {1, int(name == "000001") + 1}
    assert newest_checkpoint(tmp_path).iteration in {1, 2}


def test_a_file_system_that_cannot_sync_has_checkpoints_too(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    write_checkpoint(tmp_path / "000001", make(1))
    assert read_checkpoint(tmp_path / "000001").iteration == 1


def test_a_full_disk_is_a_checkpoint_error(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="could not be written: No space left on device"):
        write_checkpoint(tmp_path / "000002", make(2))
    assert list(tmp_path.iterdir()) == []


def test_arrays_are_written_and_read_with_one_copy_at_most(tmp_path):
    replay = np.random.default_rng(0).integers(0, 255, (64, 2**17), np.uint8)  # 8 MiB
    checkpoint = make(state={"replay": replay})
    write_checkpoint(tmp_path / "000006", make(6))  # imports what it needs
    read_checkpoint(tmp_path / "000006")
    tracemalloc.start()
    try:
        write_checkpoint(tmp_path / "000007", checkpoint)
        written_with = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        found = read_checkpoint(tmp_path / "000007").state["replay"]
        read_with = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found, replay)
    assert written_with < replay.nbytes * 9 / 8  # older releases of safetensors make one
    assert read_with < replay.nbytes * 9 / 8


def test_the_files_of_a_checkpoint_have_the_mode_of_other_files(written):
    (written.parent / "other").touch()
    modes = {path.stat().st_mode for path in (written.parent / "other", *written.iterdir())}
    assert len(modes) == 1


def test_an_unsupported_state_is_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"learner/odd"):
        write_checkpoint(tmp_path / "c", make(state={"learner": {"odd": object()}}))
    assert list(tmp_path.iterdir()) == []


def test_the_newest_and_the_best_are_kept(tmp_path):
    checkpoints = folder(tmp_path, keep=2)
    for iteration, mean in [(10, 5.0), (20, 9.0), (30, 4.0), (40, 3.0), (50, 2.0)]:
        checkpoints.save(make(iteration, mean))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["000020", "000040", "000050", "best", "latest"]
    assert os.readlink(tmp_path / "best") == "000020"
    assert os.readlink(tmp_path / "latest") == "000050"
    assert best_checkpoint(tmp_path).iteration == 20
    reopened = folder(tmp_path)
    assert (reopened.best, reopened.newest) == (20, 50)


def test_a_mean_over_few_episodes_is_best_only_until_a_full_window(tmp_path):
    checkpoints = folder(tmp_path, keep=None)
    lucky = make(1, 99.0)
    lucky.row["episodes_in_mean"] = 3
    checkpoints.save(lucky)
    assert checkpoints.best == 1
    checkpoints.save(make(2, 5.0))
    assert checkpoints.best == 2
    checkpoints.save(make(3, None))
    assert checkpoints.best == 2


def test_lower_can_be_better():
    score = score_by("a/b", "min", smoothing_episodes=1)
    assert score({"a": {"b": 1.0}}) > score({"a": {"b": 2.0}}) > score({"a": {"b": None}})


def test_leftovers_of_a_kill_are_removed_and_damaged_checkpoints_skipped(tmp_path, caplog):
    folder(tmp_path).save(make(10))
    (tmp_path / ".writing-000020-1").mkdir()
    (tmp_path / ".old-000003").mkdir()
    (tmp_path / "000020").mkdir()
    assert folder(tmp_path).newest == 10
    assert newest_checkpoint(tmp_path).iteration == 10
    assert "000020" in caplog.text
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_instead_of_a_damaged_best_checkpoint_the_newest_whole_one_is_read(tmp_path, caplog):
    checkpoints = folder(tmp_path, keep=None)
    for iteration, mean in [(10, 9.0), (20, 5.0), (30, 4.0)]:
        checkpoints.save(make(iteration, mean))
    assert best_checkpoint(tmp_path).iteration == 10
    for damaged in ("000010", "000030"):
        flip_last_bit(tmp_path / damaged / "state.safetensors")
    assert best_checkpoint(tmp_path).iteration == 20
    assert all(name in caplog.text for name in ("000010: ", "000030: ", "000020 is used instead"))


def test_newest_is_none_without_checkpoints_and_an_error_if_all_are_damaged(tmp_path):
    assert newest_checkpoint(tmp_path / "missing") is None
    (tmp_path / "000020").mkdir()
    with pytest.raises(CheckpointError):
        newest_checkpoint(tmp_path)


def test_a_moved_folder_keeps_its_links(tmp_path):
    folder(tmp_path / "a").save(make(10))
    (tmp_path / "a").rename(tmp_path / "b")
    assert best_checkpoint(tmp_path / "b").iteration == 10
    assert not Path(os.readlink(tmp_path / "b" / "best")).is_absolute()


def test_checkpoints_come_by_the_clock_unless_the_file_says_how_often(monkeypatch):
    """After the iteration that ends a minute after the last one, or 50 times what writing takes."""
    seconds = iter(range(0, 100_000, 16))
    monkeypatch.setattr(
        "rlrun.checkpoint.checkpoint_folder.perf_counter", lambda: float(next(seconds))
    )
    pace = Pace(60.0)
    due = [pace.is_due() for _ in range(5)]
    assert due == [False, False, False, True, True]
    with pace.timed():  # 16 seconds
        pass
    assert [pace.is_due() for _ in range(51)] == [False] * 49 + [True] * 2
