"""MultiAgentBatch: counting, lockstep slices, delegation to the policies' batches."""

import numpy as np
import pytest

from rlrun.data.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch


def rows(eps_id, t, **more):
    return SampleBatch({"eps_id": np.array(eps_id), "t": np.array(t), **more})


def steps_of(batch):
    return list(zip(batch["eps_id"], batch["t"], strict=True))


def team():
    """Two policies over episodes 1 (3 steps) and 2 (2 steps); "b" acts in some steps, or twice."""
    return MultiAgentBatch(
        {
            "a": rows([2, 2, 1, 1, 1], [0, 1, 0, 1, 2]),
            "b": rows([1, 1, 2], [2, 2, 0], agent_index=np.array([0, 1, 0])),
        },
        env_steps=5,
    )


def test_counting():
    assert (team().count, len(team()), team().env_steps(), team().agent_steps()) == (5, 5, 5, 8)
    team().check_valid()


def test_timeslices_go_through_the_steps_of_all_policies_together():
    slices = team().timeslices(2)
    assert [part.env_steps() for part in slices] == [2, 2, 1]
    seen = [{policy: steps_of(part[policy]) for policy in part} for part in slices]
    assert seen == [
        {"a": [(1, 0), (1, 1)]},
        {"a": [(1, 2), (2, 0)], "b": [(1, 2), (1, 2), (2, 0)]},
        {"a": [(2, 1)]},
    ]
    assert slices[1]["b"]["agent_index"].tolist() == [0, 1, 0]
    assert MultiAgentBatch({}, 0).timeslices(3) == []
    with pytest.raises(ValueError, match="at least 1"):
        team().timeslices(0)


def test_wrap_as_needed():
    batch = rows([1], [0])
    assert MultiAgentBatch.wrap_as_needed({DEFAULT_POLICY_ID: batch}, 1) is batch
    wrapped = MultiAgentBatch.wrap_as_needed({"other": batch}, 7)
    assert isinstance(wrapped, MultiAgentBatch)
    assert wrapped.count == 7
    both = MultiAgentBatch.wrap_as_needed({DEFAULT_POLICY_ID: batch, "other": batch}, 1)
    assert isinstance(both, MultiAgentBatch)
    assert batch.as_multi_agent()[DEFAULT_POLICY_ID] is batch
    assert both.as_multi_agent() is both


def test_everything_else_is_done_per_policy():
    batch = team()
    copy = batch.copy()
    batch["a"]["t"][0] = 99
    assert copy["a"]["t"][0] == 0
    assert copy.size_bytes() == sum(copy[policy].size_bytes() for policy in copy)
    assert "a" in copy
    assert "c" not in copy
    assert isinstance(copy.compress(columns=["t"])["a"]["t"][0], bytes)
    assert copy.decompress_if_needed(["t"])["a"]["t"].tolist() == [0, 1, 0, 1, 2]
    assert copy.set_training()["b"].is_training
    assert copy.to_device("cpu")["b"].count == 3
    assert repr(copy).startswith("MultiAgentBatch({'a': SampleBatch(5 rows")
    copy["b"]["t"] = [1]
    with pytest.raises(ValueError, match="policy 'b': column 't'"):
        copy.check_valid()
