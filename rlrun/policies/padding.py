"""Sequences one after the other, and side by side.

Batches hold the steps of sequences one after the other, [M, ...], without padding: encoders, heads
and losses work on those, so that no padding can enter a mean. Only what runs through time needs
sequences side by side, [S, L, ...], and these functions go back and forth around it.

    S  sequences    L  steps of the longest    M  steps of all of them
"""

import torch
from torch import Tensor


def step_mask(seq_lens: Tensor) -> Tensor:
    """True where a row of [S, L] is a step, False where it is padding; bool [S, L].

    Args:
        seq_lens: steps of each sequence, int [S].
    """
    steps = torch.arange(int(seq_lens.max()), device=seq_lens.device)
    return steps < seq_lens[:, None]


def pad_sequences(steps: Tensor, mask: Tensor, value: float = 0.0) -> Tensor:
    """Steps [M, ...] as sequences [S, L, ...], ``value`` to the right of shorter ones."""
    if len(steps) == mask.numel():
        return steps.view(*mask.shape, *steps.shape[1:])
    padded = steps.new_full((*mask.shape, *steps.shape[1:]), value)
    padded[mask] = steps
    return padded


def unpad_sequences(padded: Tensor, mask: Tensor) -> Tensor:
    """Sequences [S, L, ...] as steps [M, ...], without the padding."""
    return padded[mask]
