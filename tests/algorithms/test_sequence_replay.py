"""The loss of sequences, step by step, with networks whose values are given."""

from types import SimpleNamespace

import pytest
import torch

from rlrun.algorithms.sequence_replay import LEARNED, NEXT_OBS_ROWS, OBS_ROWS, WARMED, sequence_loss
from rlrun.data import columns as col

NUM_OBS, M = 7, 6  # observations, steps


def network(values):
    return SimpleNamespace(forward_train=lambda rows: {col.ACTION_DIST_INPUTS: values})


def huber(error):
    return 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("learned", [[0, 1, 1, 0, 1, 0], [0, 1, 0, 0, 0, 0], [0] * M])
def test_it_is_the_weighted_mean_over_the_steps_that_are_learned(double_q, learned):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(NUM_OBS, 3, generator=generator).requires_grad_()
    of_target = 2.0 * torch.randn(NUM_OBS, 3, generator=generator)
    rows = {
        WARMED: torch.zeros(0, dtype=torch.int64),
        OBS_ROWS: torch.tensor([0, 1, 2, 4, 5, 0]),
        NEXT_OBS_ROWS: torch.tensor([1, 3, 3, 5, 6, 0]),
        LEARNED: torch.tensor(learned, dtype=torch.bool),
        col.ACTIONS: torch.tensor([0, 2, 1, 1, 0, 2]),
        col.REWARDS: torch.randn(M, generator=generator),
        col.DISCOUNTS: torch.full((M,), 0.9),
        col.TERMINATEDS: torch.tensor([0, 0, 1, 0, 0, 0], dtype=torch.bool),
        col.WEIGHTS: torch.rand(M, generator=generator),
    }
    loss, statistics = sequence_loss(
        network(values), rows, target=network(of_target), double_q=double_q
    )
    columns = {name: column.tolist() for name, column in rows.items()}
    total, chosen, distances = 0.0, [], []
    for step in filter(learned.__getitem__, range(M)):
        value = values[columns[OBS_ROWS][step]][columns[col.ACTIONS][step]].item()
        after = columns[NEXT_OBS_ROWS][step]
        best = (values if double_q else of_target)[after].argmax()
        following = 0.0 if columns[col.TERMINATEDS][step] else of_target[after][best].item()
        error = value - (columns[col.REWARDS][step] + 0.9 * following)
        total += columns[col.WEIGHTS][step] * huber(error)
        chosen.append(value)
        distances.append(error)
    count = max(sum(learned), 1)
    assert loss.item() == statistics["total_loss"].item() == pytest.approx(total / count)
    assert statistics["q_mean"].item() == pytest.approx(sum(chosen) / count)
    assert statistics["td_error_mean"].item() == pytest.approx(sum(map(abs, distances)) / count)
    errors = statistics["td_errors"]
    assert errors.isnan().tolist() == [not one for one in learned]
    assert errors[~errors.isnan()].tolist() == pytest.approx(distances)
    assert not any(number.requires_grad for number in statistics.values())
    loss.backward()
    moved = {columns[OBS_ROWS][step] for step in range(M) if learned[step]}
    assert set(values.grad.abs().sum(1).nonzero()[:, 0].tolist()) == moved
