"""C51: DQN that learns the distributions of values (Bellemare et al. 2017, arXiv:1707.06887).

Owns the loss and the projection that it rests on; `training.num_atoms` above 1 turns DQN to it.

    M  rows of a minibatch      n  actions      K  atoms of a value's distribution
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.data import columns as col
from rlrun.policies.q_network import ATOM_LOGITS, QNetwork
from rlrun.policies.rl_module import RLModule


def c51_loss(
    module: RLModule, rows: dict[str, Tensor], *, target: RLModule, double_q: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean cross-entropy of the value's distribution to the projected one, weighted row by row.

    The target is the distribution of ``R + discount Z(s', a*)``, brought back to the K atoms
    (Bellemare et al. 2017, algorithm 1); a* is chosen by means, by ``module`` with ``double_q``.

    Args and returns: as for `dqn_loss` of dqn.py; ``td_errors`` are the Kullback-Leibler
    divergences of the targets, by which Rainbow sets priorities.
    """
    assert isinstance(module, QNetwork)  # no other has atoms
    outputs = module.forward_train(rows)
    index = torch.arange(len(rows[col.ACTIONS]), device=rows[col.ACTIONS].device)
    chosen = outputs[ATOM_LOGITS][index, rows[col.ACTIONS]].log_softmax(-1)
    with torch.no_grad():
        support = module.support
        following = {col.OBS: rows[col.NEXT_OBS]}
        next_outputs = target.forward_train(following)
        choosing = module.forward_train(following) if double_q else next_outputs
        best = choosing[col.ACTION_DIST_INPUTS].argmax(dim=1)
        probabilities = next_outputs[ATOM_LOGITS][index, best].softmax(-1)
        discounts = torch.where(rows[col.TERMINATEDS], 0.0, rows[col.DISCOUNTS])
        goals = project_distribution(probabilities, rows[col.REWARDS], discounts, support)
    cross_entropies = -(goals * chosen).sum(-1)
    loss = (rows[col.WEIGHTS] * cross_entropies).mean()
    means = chosen.detach().exp() @ support
    statistics = {
        "total_loss": loss.detach(),
        "q_mean": means.mean(),
        "td_error_mean": (means - goals @ support).abs().mean(),
        "td_errors": cross_entropies.detach() + torch.xlogy(goals, goals).sum(-1),
    }
    return loss, statistics


def project_distribution(
    probabilities: Tensor, rewards: Tensor, discounts: Tensor, support: Tensor
) -> Tensor:
    """The distribution of ``reward + discount Z`` on the atoms of Z, ``[M, K]``.

    A point between two atoms is shared among them by its distance from each, so that the mean
    stays; one beyond the ends goes to the end (Bellemare et al. 2017, eq. 7).

    Args:
        probabilities: of Z, ``[M, K]``.
        rewards, discounts: ``[M]``; a discount of 0 leaves all mass at the reward.
        support: the K atoms, ascending at equal distances.
    """
    low, high = support[0], support[-1]
    points = torch.addcmul(rewards[:, None], discounts[:, None], support).clamp(low, high)
    positions = (points - low) / (support[1] - low)
    # share[m, i, j] is how much of point j goes to atom i.
    atoms = torch.arange(len(support), device=support.device, dtype=support.dtype)[:, None]
    share = (1.0 - (positions[:, None, :] - atoms).abs()).clamp(min=0.0)
    return (share @ probabilities[:, :, None]).squeeze(-1)
