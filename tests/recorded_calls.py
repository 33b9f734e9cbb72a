"""A stand-in of CUDA graphs on the CPU: operations are recorded, and run again on the same memory.

As on a GPU, a replay runs no Python, and what Python made meanwhile elsewhere is not seen.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rlrun.learning import cuda_graphs
from rlrun.learning.learner import Learner
from rlrun.learning.optimizers import FlatAdam
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.networks import MLP, TwinMLP

READS = ("_local_scalar_dense", "lift_fresh", "nonzero")  # wait for the GPU, or copy to it


class _Recorder(TorchDispatchMode):
    """Operations as they are called; their results are kept, so that their memory stays theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if any(name in str(function) for name in READS):
            raise RuntimeError(f"{function} is not permitted when a stream is capturing")
        results = function(*args, **(kwargs or {}))
        aliases = [returned.alias_info for returned in function._schema.returns]
        if not any(alias is not None and not alias.is_write for alias in aliases):  # no view
            changed = any(alias is not None for alias in aliases)
            kept = None if changed else results
            self.operations.append((function, args, kwargs or {}, kept))
        return results

    def run_again(self) -> None:
        for function, args, kwargs, kept in self.operations:
            results = function(*args, **kwargs)
            if isinstance(kept, torch.Tensor):
                kept.copy_(results)
            elif kept is not None:
                for tensor, result in zip(kept, results, strict=True):
                    tensor.copy_(result)


class StandIn:
    """Records on the CPU what learners with ``learners.cuda_graphs`` would record on a GPU.

    Attributes:
        recordings: number of the calls that were recorded.
        replays: number of the calls that were replayed.
    """

    def __init__(self, monkeypatch) -> None:
        self.recordings = self.replays = 0
        self._records = False
        monkeypatch.setattr(cuda_graphs, "record", self._record)
        monkeypatch.setattr(cuda_graphs, "side_stream", nullcontext)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self._records)

    def _record(self, call, device, pool):
        recorder = _Recorder()
        self._records = True
        try:
            with recorder:
                returned = call()
        finally:
            self._records = False
        self.recordings += 1
        first = True

        def launch():
            nonlocal first
            if not first:  # recording here has run it once already, unlike on a GPU
                with torch.no_grad():
                    recorder.run_again()
            first = False
            self.replays += 1

        return launch, returned


def compute_as_on_a_gpu(monkeypatch) -> None:
    """Let learners on the CPU compute by torch alone, without numpy."""

    def without(kind, name):
        initialise = kind.__init__

        def changed(self, *args, **kwargs):
            initialise(self, *args, **kwargs)
            setattr(self, name, None)

        monkeypatch.setattr(kind, "__init__", changed)

    without(FlatParameters, "_arrays")
    without(FlatAdam, "_step_array")
    for network in (MLP, TwinMLP):
        monkeypatch.setattr(network, "has_vjp", False)


def record_on_the_cpu(monkeypatch) -> StandIn:
    """Let all learners that are made from now on record their updates by a stand-in."""
    monkeypatch.setattr(Learner, "recorded", lambda self, f: cuda_graphs.CudaGraphs(f, self.device))
    return StandIn(monkeypatch)
