import pytest
import torch

from rlrun.learning.adam import FlatAdam


@pytest.mark.parametrize("eps", [1e-8, 1e-5])
def test_it_takes_the_steps_of_torchs_adam(eps):
    torch.manual_seed(0)
    vector = torch.randn(40)
    reference = torch.nn.Parameter(vector.clone())
    grads = torch.zeros(40)
    ours = FlatAdam(vector, grads, eps=eps)
    theirs = torch.optim.Adam([reference], lr=1.0, eps=eps)
    for step in range(50):
        grads.copy_(torch.randn(40) * 10 ** (step % 5 - 2))
        reference.grad = grads.clone()
        lr = 1e-3 * (1 + step % 3)
        theirs.param_groups[0]["lr"] = lr
        theirs.step()
        ours.step(lr)
        torch.testing.assert_close(vector, reference.data, rtol=1e-5, atol=1e-6)


def test_a_restored_optimizer_takes_the_same_steps():
    def make():
        vector, grads = torch.ones(5), torch.arange(5.0)
        return vector, FlatAdam(vector, grads)

    straight, adam = make()
    for _ in range(4):
        adam.step(0.01)
    half, first = make()
    first.step(0.01)
    first.step(0.01)
    resumed, second = make()
    resumed.copy_(half)
    second.set_state(first.get_state())
    second.step(0.01)
    second.step(0.01)
    assert torch.equal(resumed, straight)


def test_parameters_without_gradient_stay():
    vector = torch.ones(3)
    FlatAdam(vector, torch.zeros(3)).step(0.1)
    assert vector.tolist() == [1.0] * 3


def test_moments_that_have_decayed_take_no_longer():
    """Denormal numbers would; they are flushed in a step, and only there."""
    vector, grads = torch.ones(3), torch.zeros(3)
    adam = FlatAdam(vector, grads)
    tiny = torch.finfo(torch.float32).tiny
    state = adam.get_state()
    adam.set_state({**state, "mean": [tiny, 1e-40, 0.5], "square": [tiny, 1e-40, 0.5]})
    adam.step(0.1)
    moments = adam.get_state()
    for name in ("mean", "square"):
        assert moments[name][1] == 0.0
        assert moments[name][2] > 0.0
    assert (torch.tensor([1e-40]) * 1.0).item() > 0.0
