"""What learners of a group tell each other; the messages of two meet in threads here."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import distributed

from rlrun.learning.process_group import ProcessGroup


@pytest.fixture
def reduced(monkeypatch):
    """Call it with (gradients, statistics, weight) of two learners: what both have then."""
    rank_of, sent, barrier, names = {}, {}, threading.Barrier(2, timeout=10), []

    def exchanged(message):
        sent[rank_of[threading.get_ident()]] = message
        barrier.wait()
        messages = [sent[0], sent[1]]
        barrier.wait()
        return messages

    def all_reduce(tensor, operation):
        both = torch.stack(exchanged(tensor.clone()))
        tensor.copy_(both.sum(0) if operation == distributed.ReduceOp.SUM else both.amax(0))

    def all_gather_object(found, own):
        names.append(own)
        found[:] = exchanged(own)

    monkeypatch.setattr(distributed, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(distributed, "all_gather_object", all_gather_object)
    groups = [ProcessGroup(rank, 2, None, "gloo") for rank in range(2)]

    def reduce_in_thread(rank, gradients, statistics, weight):
        rank_of[threading.get_ident()] = rank
        gradients = torch.tensor(gradients)
        weights = dict.fromkeys(statistics, weight)
        found = groups[rank].all_reduce(gradients, statistics, weights)
        return gradients.tolist(), {name: number.item() for name, number in found.items()}

    def reduced(*reports):
        with ThreadPoolExecutor(2) as threads:
            waiting = [threads.submit(reduce_in_thread, k, *each) for k, each in enumerate(reports)]
            return [each.result() for each in waiting]

    reduced.names = names
    return reduced


def test_gradients_are_summed_statistics_averaged_and_of_extremes_the_outermost_taken(reduced):
    one = {"loss": 1.0, "min_ratio": 0.5, "max_kl": -0.5}
    other = {"loss": 3.0, "min_ratio": 0.75, "max_kl": -0.25}
    for _ in range(2):  # the second time all names are known
        found = reduced(([1.0, 2.0], one, 0.25), ([10.0, 20.0], other, 0.75))
        expected = {"loss": 2.5, "min_ratio": 0.5, "max_kl": -0.25}
        assert found == [([11.0, 22.0], expected)] * 2
    assert reduced.names == [[*one], [*other]], "which are sent once"


def test_a_vector_is_no_statistic(reduced):
    statistics = {"loss": 1.0, "mine": torch.ones(2)}
    with pytest.raises(ValueError, match=r"statistic 'mine' must be one number, not tensor"):
        reduced(*[([1.0], statistics, 0.5)] * 2)


def test_what_one_learner_lacks_is_the_others_number(reduced):
    """Where neither has one, it is NaN for those that report it."""
    one = {"loss": 4.0, "min_ratio": math.nan, "max_kl": 0.5, "own": 7.0}
    other = {"loss": math.nan, "min_ratio": 2.0, "max_kl": math.nan, "late": math.nan}
    for _ in range(2):
        (gradients, of_one), (_, of_other) = reduced(([1.0], one, 0.25), ([2.0], other, 0.75))
        assert gradients == [3.0]
        assert of_one == {"loss": 4.0, "min_ratio": 2.0, "max_kl": 0.5, "own": 7.0}
        assert math.isnan(of_other.pop("late"))
        assert of_other == of_one


@pytest.mark.parametrize("value", [-math.inf, math.inf])
def test_infinite_statistics_stay_what_they_are(reduced, value):
    one = {"loss": 1.0, "min_ratio": 1.0, "max_kl": 1.0}
    other = dict.fromkeys(one, value)
    expected = {"loss": value, "min_ratio": min(1.0, value), "max_kl": max(1.0, value)}
    assert reduced(([0.0], one, 0.5), ([0.0], other, 0.5)) == [([0.0], expected)] * 2


def test_where_no_learner_has_an_extreme_it_is_no_number(reduced):
    nothing = {"min_ratio": math.nan, "max_kl": math.nan}
    for _, found in reduced(([0.0], nothing, 0.5), ([0.0], nothing, 0.5)):
        assert all(map(math.isnan, found.values()))
        assert found.keys() == nothing.keys()
