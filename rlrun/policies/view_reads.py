"""Which of its views a module reads, found by a dummy pass when a policy or a learner is built.

A module may ask for more views than it reads when it acts, or when it learns. Those are not
gathered for it. Knows nothing of trajectories; where the rows of a view come from is in
`rlrun.data.trajectory_views`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.data import columns as col
from rlrun.data.seeding import GENERATORS_LOCK
from rlrun.data.trajectory_views import source_rows
from rlrun.policies.action_sampling import action_sampler
from rlrun.policies.flat_parameters import to_tensors
from rlrun.policies.rl_module import RLModule

_NUM_ROWS = 32


def unread_views(module: RLModule, *forwards: str) -> frozenset[str]:
    """Views that none of these forward passes reads, though it could: by one pass on zeros each.

    The module is copied before, and torch's random numbers are as they were afterwards. A view that
    says ``used_for_compute_actions=True`` counts as read.

    Raises:
        Exception: any that a forward pass raises.
    """
    judged = {
        name
        for name, view in module.view_requirements.items()
        if view.used_for_compute_actions is None and view.is_acted_on(name)
        if name != col.OBS and not name.startswith(col.STATE_IN_PREFIX)
    }
    if not judged:
        return frozenset()
    dummy, rows = copy.deepcopy(module), _RecordedRows(_zeros(module))
    with GENERATORS_LOCK, torch.random.fork_rng(), torch.no_grad():
        for forward in forwards:
            try:
                getattr(dummy, forward)(rows)
            except Exception as error:
                error.add_note(
                    f"(in {forward} on rows of zeros, which shows what views it reads; it is not "
                    "called so if all views say used_for_compute_actions=True)"
                )
                raise
    return frozenset(judged - rows.read)


def _zeros(module: RLModule) -> dict[str, Tensor]:
    """What the module is given of 32 sequences of one step: initial states, zeros elsewhere."""
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    states = [state.detach().cpu().numpy() for state in module.initial_state()]
    sampler, given = action_sampler(module.action_space), {}
    action = np.zeros(sampler.shape, sampler.dtype)
    for name, view in module.view_requirements.items():
        source = view.data_col or name
        if not view.is_acted_on(name) or source == col.INFOS:
            continue
        space = module.observation_space if source == col.OBS else view.space
        rows = source_rows(source, _NUM_ROWS, space, action, states)
        if view.time_axis:
            rows = np.repeat(rows[:, None], len(view.steps), axis=1)
        given[name] = to_tensors(rows, device)
    if states:
        given[col.SEQ_LENS] = torch.ones(_NUM_ROWS, dtype=torch.int64, device=device)
    return given


class _RecordedRows(dict[str, Tensor]):
    """What a module is given, by name; `read` are the names that it asked for.

    Going through all of it, or copying it, is reading all of it.
    """

    def __init__(self, rows: Mapping[str, Tensor]) -> None:
        super().__init__(rows)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        self.read.add(name)
        return super().__getitem__(name)

    def pop(self, name: str, *default: Any) -> Any:
        return self.get(name, *default)  # each pass is given all of them

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    # With an `__iter__` of its own, dict(rows) and {**rows} come by here too.
    def __iter__(self) -> Iterator[str]:
        self.read.update(super().keys())
        return super().__iter__()

    # Written in terms of the methods above, which dict's own are not.
    get: Any = Mapping.get
    keys: Any = Mapping.keys
    values: Any = Mapping.values
    items: Any = Mapping.items

    def copy(self) -> Any:
        return dict(self)

    def __or__(self, more: Any) -> Any:
        return dict(self) | more
