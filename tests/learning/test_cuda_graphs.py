"""Recording and replaying calls, on the CPU by a stand-in of CUDA graphs."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from recorded_calls import StandIn

from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
from rlrun.learning import learner
from rlrun.learning.cuda_graphs import MAX_GRAPHS, CudaGraphs
from rlrun.learning.losses import MAX_LOSSES
from rlrun.policies.catalog import build_module

CPU = torch.device("cpu")


@pytest.fixture
def stand_in(monkeypatch):
    return StandIn(monkeypatch)


class Counted:
    """``sum(x) * factor + number``, and how often Python has computed it."""

    def __init__(self):
        self.calls = 0

    def __call__(self, inputs, *, factor=1.0):
        self.calls += 1
        rows = inputs["rows"]["x"]
        return {"sum": rows.sum() * factor + inputs["number"], "doubled": 2.0 * rows}


def inputs(*numbers, number=0.0):
    return {"rows": {"x": np.array(numbers, np.float32)}, "number": number}


def test_the_second_call_of_a_kind_is_recorded_and_later_ones_run_no_python(stand_in):
    function = Counted()
    graphs = CudaGraphs(function, CPU)
    found = [graphs(inputs(i, 1.0, number=10.0 * i)) for i in range(5)]
    assert [float(one["sum"]) for one in found] == [1.0 + 11.0 * i for i in range(5)]
    assert [one["doubled"].tolist() for one in found] == [[2.0 * i, 2.0] for i in range(5)]
    assert (function.calls, stand_in.recordings, stand_in.replays) == (2, 1, 4)


def test_inputs_may_be_tensors_and_are_not_changed(stand_in):
    graphs = CudaGraphs(lambda inputs: {"x": inputs["x"].add_(1.0) * 1.0}, CPU)
    x = torch.zeros(3)
    for _ in range(4):
        assert graphs({"x": x})["x"].tolist() == [1.0, 1.0, 1.0]
    assert x.tolist() == [0.0, 0.0, 0.0]


def test_other_shapes_and_other_constants_are_other_kinds(stand_in):
    function = Counted()
    graphs = CudaGraphs(function, CPU)
    for _ in range(3):
        assert float(graphs(inputs(1.0))["sum"]) == 1.0
        assert float(graphs(inputs(1.0, 2.0))["sum"]) == 3.0
        assert float(graphs(inputs(1.0, 2.0), factor=2.0)["sum"]) == 6.0
    assert stand_in.recordings == 3


def test_kinds_that_were_not_called_for_long_are_forgotten(stand_in):
    function = Counted()
    graphs = CudaGraphs(function, CPU)
    for factor in range(2 * MAX_GRAPHS):  # a schedule: each value counts for some updates
        for _ in range(3):
            assert float(graphs(inputs(1.0), factor=factor)["sum"]) == factor
    assert stand_in.recordings == 2 * MAX_GRAPHS
    graphs(inputs(1.0), factor=0)
    assert stand_in.recordings == 2 * MAX_GRAPHS, "as at first"
    graphs(inputs(1.0), factor=2 * MAX_GRAPHS - 1)
    assert stand_in.recordings == 2 * MAX_GRAPHS, "as it is still known"


def test_a_call_within_a_recorded_one_is_a_part_of_it(stand_in):
    inner = CudaGraphs(lambda inputs: {"x": inputs["x"] + 1.0}, CPU)
    outer = CudaGraphs(lambda inputs: {"x": inner(inputs)["x"] * 2.0}, CPU)
    for i in range(4):
        assert float(outer({"x": float(i)})["x"]) == 2.0 * (i + 1)
    assert (stand_in.recordings, stand_in.replays) == (1, 3)


def learner_on(device, settings, monkeypatch):
    """A learner as it would be on this device, which need not exist."""
    spaces = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)
    module = build_module(*spaces, ModelConfig())
    monkeypatch.setattr(type(module), "to", lambda self, device: self)
    monkeypatch.setattr(learner, "resolve_device", lambda name: SimpleNamespace(type=device))
    return learner.Learner(module, TrainingConfig(), settings)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_learner_records_on_a_gpu_if_its_settings_say_so(monkeypatch, device, graphs):
    made = learner_on(device, LearnersConfig(device=device, cuda_graphs=graphs), monkeypatch)
    recorded = [made.recorded(Counted()), made._step]
    expected = graphs and device == "cuda"
    assert [isinstance(each, CudaGraphs) for each in recorded] == [expected, expected]


def test_what_cannot_be_recorded_says_how_to_go_on(stand_in):
    graphs = CudaGraphs(lambda inputs: {"x": inputs["x"] * float(inputs["x"])}, CPU)
    graphs({"x": 2.0})
    with pytest.raises(RuntimeError, match="not permitted when a stream is capturing") as caught:
        graphs({"x": 2.0})
    assert "learners.cuda_graphs: false" in caught.value.__notes__[0]


def test_losses_made_anew_in_each_update_are_an_error_and_not_kept(monkeypatch):
    made = learner_on("cuda", LearnersConfig(cuda_graphs=True), monkeypatch)
    losses = [lambda module, rows: None for _ in range(MAX_LOSSES + 1)]
    for loss in losses[:-1]:
        assert made._gradient_of(loss) is made._gradient_of(loss)
    with pytest.raises(ValueError, match=r"<lambda> .* is another function in each update"):
        made._gradient_of(losses[-1])
