"""SampleBatch as a container: columns, counting, slicing, episodes, appending, repr."""

import sys

import numpy as np
import pytest

import rlrun
from rlrun.data import columns
from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch, concat_samples


def steps(n, first=0):
    return SampleBatch({"obs": np.arange(first, first + n, dtype=np.float32), "t": np.arange(n)})


def test_public_names_and_constants():
    assert rlrun.SampleBatch is SampleBatch
    assert rlrun.MultiAgentBatch is MultiAgentBatch
    for name in vars(columns):
        if name.isupper() and isinstance(getattr(columns, name), str) and "PREFIX" not in name:
            assert getattr(SampleBatch, name) == getattr(columns, name)


def test_values_become_columns():
    batch = SampleBatch(
        {
            "rewards": [1, 2.5],
            "obs": {"pos": [[1, 2], [3, 4]], "goal": (np.zeros(2), ["a", "b"])},
            "infos": [{"x": 1}, {}],
            "ragged": [[1], [1, 2]],
        }
    )
    assert batch["rewards"].dtype == np.float64
    assert batch["obs"]["pos"].shape == (2, 2)
    assert batch["obs"]["goal"][1].tolist() == ["a", "b"]
    assert batch["infos"].dtype == object
    assert batch["infos"][0] == {"x": 1}
    assert batch["ragged"].tolist() == [[1], [1, 2]]
    batch.check_valid()
    assert SampleBatch({"rewards": 3.0, "t": np.int64(2), "x": np.array(1)}).count == 1
    with pytest.raises(TypeError, match="not <class 'object'>"):
        SampleBatch({"obs": object()})


def test_columns_must_have_equal_lengths():
    with pytest.raises(ValueError, match=r"'actions' has \[3\] rows where others have 2"):
        SampleBatch({"obs": np.zeros(2), "actions": np.zeros(3)})
    with pytest.raises(ValueError, match="'obs'"):
        SampleBatch({"t": np.zeros(2), "obs": {"a": np.zeros(2), "b": np.zeros(1)}})
    batch = steps(3)
    batch["infos"] = [{}]
    with pytest.raises(ValueError, match="'infos'"):
        batch.check_valid()


def test_dones_is_refused_with_its_successors():
    with pytest.raises(ValueError, match="'terminateds' and 'truncateds'"):
        SampleBatch({"dones": [True]})
    with pytest.raises(KeyError, match="'terminateds' and 'truncateds'"):
        steps(1)["dones"]
    with pytest.raises(KeyError, match="actions"):
        steps(1)["actions"]


def test_infos_and_states_never_count():
    batch = SampleBatch({"infos": [{}], "state_in_0": np.zeros((1, 4)), "obs": np.zeros((3, 2))})
    assert (batch.count, len(batch), batch.env_steps(), batch.agent_steps()) == (3, 3, 3, 3)
    assert SampleBatch({"infos": [{}]}).count == 0
    assert SampleBatch({"obs": {"a": np.zeros(4)}}).count == 4
    assert SampleBatch({"obs": np.zeros((5, 2, 7))}, time_major=True).count == 10


def test_behaves_like_a_mapping():
    batch = steps(2)
    batch.update({"rewards": [1.0, 2.0]})
    assert list(batch) == ["obs", "t", "rewards"]
    assert {**batch}.keys() == batch.keys()
    assert batch.get("actions") is None
    assert [len(column) for column in batch.values()] == [2, 2, 2]
    assert batch.pop("rewards").tolist() == [1.0, 2.0]
    del batch["t"]
    assert "t" not in batch
    assert batch.columns(["obs"])[0] is batch["obs"]
    assert SampleBatch(batch)["obs"] is batch["obs"]


def test_fast_constructor_takes_over_ready_columns():
    ready = {f"column_{i}": np.zeros(8) for i in range(12)}
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    batch = SampleBatch.from_columns(ready)
    sys.setprofile(None)
    assert calls <= 3  # itself, __new__, and switching the profiler off
    assert batch["column_3"] is ready["column_3"]
    assert batch.count == 8


def test_slices_are_views_cut_at_the_length():
    batch = steps(5)
    part = batch[1:99]
    assert part["obs"].tolist() == [1, 2, 3, 4]
    assert np.shares_memory(part["obs"], batch["obs"])
    assert batch[:0].count == batch[9:12].count == batch[3:2].count == 0
    for bad in (slice(-2, None), slice(0, -1), slice(0, 4, 2)):
        with pytest.raises(ValueError, match="bounds"):
            batch[bad]


def test_nested_columns_go_everywhere_rows_go():
    batch = SampleBatch({"obs": {"a": np.arange(4), "b": (np.arange(8).reshape(4, 2),)}})
    assert batch[1:3]["obs"]["b"][0].tolist() == [[2, 3], [4, 5]]
    assert batch.concat(batch)["obs"]["a"].tolist() == [0, 1, 2, 3] * 2
    assert [row["obs"]["b"][0].tolist() for row in batch.rows()][3] == [6, 7]
    batch.shuffle(np.random.default_rng(0))
    assert (batch["obs"]["a"] * 2 == batch["obs"]["b"][0][:, 0]).all()
    other = SampleBatch({"obs": {"a": np.arange(4)}})
    with pytest.raises(ValueError, match="column 'obs' cannot be appended: nested columns"):
        batch.concat(other)


def test_split_by_episode_follows_changes_of_the_id():
    batch = SampleBatch({"obs": np.arange(6), "eps_id": [7, 7, 3, 7, 7, 7]})
    assert [part["obs"].tolist() for part in batch.split_by_episode()] == [[0, 1], [2], [3, 4, 5]]
    assert SampleBatch({"eps_id": np.zeros(0)}).split_by_episode() == []


def test_split_by_episode_without_ids_follows_the_flags():
    flags = {"terminateds": [0, 1, 0, 0, 0], "truncateds": [0, 0, 0, 1, 0]}
    batch = SampleBatch({"obs": np.arange(5), **flags})
    parts = [[0, 1], [2, 3], [4]]
    assert [part["obs"].tolist() for part in batch.split_by_episode()] == parts
    batch["eps_id"] = np.zeros(5)
    assert [p["obs"].tolist() for p in batch.split_by_episode("terminateds")] == parts
    with pytest.raises(KeyError):
        steps(3).split_by_episode()
    with pytest.raises(KeyError, match="must be"):
        batch.split_by_episode("t")


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ({"size": 3}, [3, 3, 1]),
        ({"size": 7}, [7]),
        ({"size": 9}, [7]),
        ({"num_slices": 3}, [2, 2, 3]),
        ({"num_slices": 9}, [0, 0, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_timeslices(arguments, sizes):
    slices = steps(7).timeslices(**arguments)
    assert [part.count for part in slices] == sizes
    assert np.concatenate([part["obs"] for part in slices]).tolist() == list(range(7))


@pytest.mark.parametrize("bad", [{}, {"size": 2, "num_slices": 2}, {"size": 0}, {"num_slices": 0}])
def test_timeslices_refuses(bad):
    with pytest.raises(ValueError, match=r"size or num_slices|must be at least 1"):
        steps(7).timeslices(**bad)


def test_shuffle_is_one_permutation_of_all_columns():
    batch = steps(50)
    assert batch.shuffle(np.random.default_rng(1)) is batch
    assert batch["obs"].tolist() == batch["t"].tolist() != list(range(50))
    assert sorted(batch["t"]) == list(range(50))
    batch.shuffle()
    batch.check_valid()


def test_concat_samples():
    first, second = steps(2), steps(3, first=10)
    first.num_grad_updates, second.num_grad_updates = 1, 6
    first.max_seq_len, second.max_seq_len = 4, 9
    second["extra"] = np.zeros(3)
    whole = SampleBatch.concat_samples([first, SampleBatch(), second])
    assert whole["obs"].tolist() == [0, 1, 10, 11, 12]
    assert whole.keys() == {"obs", "t"}
    assert (whole.num_grad_updates, whole.max_seq_len) == (4.0, 9)
    with pytest.raises(ValueError, match=r"lacks columns .*\['extra'\]"):
        concat_samples([second, first])
    assert concat_samples([]).count == 0
    assert concat_samples([SampleBatch(), first])["obs"] is first["obs"]


def test_concat_samples_names_the_column_that_does_not_fit():
    narrow, wide = SampleBatch({"obs": np.zeros((2, 3))}), SampleBatch({"obs": np.zeros((2, 4))})
    with pytest.raises(ValueError, match="column 'obs'"):
        narrow.concat(wide)


def test_concat_refuses_a_mixture_of_layouts():
    rows = steps(2)
    major = SampleBatch({"obs": np.zeros((2, 1)), "t": np.zeros((2, 1))}, time_major=True)
    with pytest.raises(ValueError, match="differ in time_major"):
        rows.concat(major)
    with pytest.raises(ValueError, match="seq_lens"):
        rows.concat(SampleBatch({"obs": np.zeros(2), "t": np.zeros(2), "seq_lens": [2]}))
    assert major.concat(major)["obs"].shape == (2, 2)
    with pytest.raises(ValueError, match="time-major"):
        major[0:1]


def test_concat_with_a_multi_agent_batch_is_multi_agent():
    whole = concat_samples([steps(2), MultiAgentBatch({"red": steps(3)}, 3), steps(4)])
    assert isinstance(whole, MultiAgentBatch)
    assert {policy: batch.count for policy, batch in whole.policy_batches.items()} == {
        "default_policy": 6,
        "red": 3,
    }
    assert (whole.env_steps(), whole.agent_steps()) == (9, 9)
    assert isinstance(concat_samples([MultiAgentBatch({}, 0), steps(1)]), MultiAgentBatch)


def test_copy_is_deep_unless_shallow():
    batch = SampleBatch({"obs": np.zeros(2), "infos": [{"a": [1]}, {}]}, max_seq_len=3)
    batch.set_training(True)
    deep, shallow = batch.copy(), batch.copy(shallow=True)
    batch["obs"][0] = 5
    batch["infos"][0]["a"].append(2)
    assert (deep["obs"][0], deep["infos"][0]) == (0, {"a": [1]})
    assert shallow["obs"][0] == 5
    assert (deep.max_seq_len, deep.is_training) == (3, True)
    del shallow["obs"]
    assert "obs" in batch


def test_trajectory_flags():
    def batch(terminateds, truncateds, **more):
        return SampleBatch({"terminateds": terminateds, "truncateds": truncateds, **more})

    assert batch([0, 0], [0, 0]).is_single_trajectory()
    assert not batch([0, 0], [0, 0]).is_terminated_or_truncated()
    ended = batch([0, 0], [0, 1])
    assert ended.is_single_trajectory()
    assert ended.is_terminated_or_truncated()
    assert not batch([1, 0], [0, 0]).is_single_trajectory()
    assert not batch([0, 0], [1, 0]).is_single_trajectory()
    assert not batch([0, 0], [0, 0], eps_id=[1, 2]).is_single_trajectory()
    assert SampleBatch({"terminateds": [True]}).is_terminated_or_truncated()


def test_repr_summarises_every_column():
    batch = SampleBatch(
        {
            "t": np.array([0, 1, 2]),
            "obs": np.array([[1.23456, -2.0]] * 3, dtype=np.float32),
            "infos": [{}, {}, {}],
            "x": {"y": np.zeros((3, 0))},
        }
    )
    assert repr(batch) == (
        "SampleBatch(3 rows, { 'infos': np.ndarray((3,), dtype=object, head={}),\n"
        "    'obs': np.ndarray((3, 2), dtype=float32, min=-2.0, max=1.235, mean=-0.383),\n"
        "    't': np.ndarray((3,), dtype=int64, min=0.0, max=2.0, mean=1.0),\n"
        "    'x': {'y': np.ndarray((3, 0), dtype=float64)} })"
    )
    assert repr(SampleBatch()) == "SampleBatch(0 rows, {})"
