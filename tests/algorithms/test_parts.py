"""Parts of an algorithm: checkpoints have them, and modules that are none are told."""

import numpy as np
import pytest
import torch
from tiny import SEVERAL_AGENTS

from rlrun import PPO, PPOConfig
from rlrun.checkpoint.checkpoint import CheckpointError


class Holder:
    """A part that saves the module in it."""

    def __init__(self, module):
        self.module = module

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def layer():
    return torch.nn.Linear(1, 1)


def forgotten(algorithm):
    algorithm.critic = layer()


def forgotten_optimizer(algorithm):
    algorithm.critic = torch.optim.Adam(algorithm.keep("layer", layer()).parameters())


def kept(algorithm):
    algorithm.critic = algorithm.keep("critic", layer())
    algorithm.adam = algorithm.keep("adam", torch.optim.Adam(algorithm.critic.parameters()))


def kept_in_another(algorithm):
    algorithm.critic = layer()
    algorithm.keep("holder", Holder(algorithm.critic))


def made_of_others(algorithm):
    kept(algorithm)
    algorithm.both = torch.nn.ModuleList([algorithm.critic, algorithm.learner.module])


def frozen(algorithm):
    algorithm.critic = layer().requires_grad_(False)


@pytest.mark.parametrize(
    ("setup", "warns"),
    [
        (forgotten, True),
        (forgotten_optimizer, True),
        *((setup, False) for setup in (kept, kept_in_another, made_of_others, frozen)),
    ],
)
def test_what_learns_and_is_not_kept_is_told(caplog, setup, warns):
    class Mine(PPO):
        def setup(self):
            super().setup()
            setup(self)

    Mine(PPOConfig().environment("CartPole-v1").model(hidden=[4])).stop()
    assert ("write self.critic = self.keep('critic', ...)" in caplog.text) == warns
    assert caplog.text.count("is in no checkpoint") == warns


def test_what_is_kept_needs_a_state_and_no_forget(built, tmp_path):
    algorithm = built(
        "PPO", SEVERAL_AGENTS, multi_agent={"policies": ["main"], "agents": {"*": "main"}}
    )
    algorithm.save(tmp_path / "before")
    critic = layer()
    assert algorithm.keep("critic", critic) is critic
    algorithm.add_policy("older", like="main")
    algorithm.remove_policy("older")
    before = critic.weight.detach().clone()
    state = algorithm.get_state()
    assert np.array_equal(state["algorithm"]["critic"]["weight"], before)
    torch.nn.init.zeros_(critic.weight)
    algorithm.set_state(state)
    assert torch.equal(critic.weight, before)
    with pytest.raises(TypeError, match=r"count has no get_state\(\) and set_state\(\): int"):
        algorithm.keep("count", 5)
    with pytest.raises(CheckpointError, match="not fit this experiment: it holds no 'critic'"):
        algorithm.restore(tmp_path / "before")
    with pytest.raises(ValueError, match=r"keep\('critic', \.\.\.\): there is a part of that name"):
        algorithm.keep("critic", layer())


def test_a_part_that_is_made_after_a_restore_gets_its_state(built, tmp_path):
    first, second = (
        built("PPO", SEVERAL_AGENTS, multi_agent={"policies": ["main"]}) for _ in range(2)
    )
    weight = first.keep("late", layer()).weight
    first.save(tmp_path / "saved")
    second.restore(tmp_path / "saved")
    assert np.array_equal(second.get_state()["algorithm"]["late"]["weight"], weight.detach())
    assert torch.equal(second.keep("late", layer()).weight, weight)


def test_a_learner_is_kept_with_its_weights(built, tmp_path):
    algorithm = built("PPO", SEVERAL_AGENTS, multi_agent={"policies": ["main"]})
    critic = algorithm.keep("critic", algorithm.make_learner("main"))
    algorithm.save(tmp_path / "saved")
    before = critic.get_weights()
    critic.parameters.vector.zero_()
    algorithm.restore(tmp_path / "saved")
    assert np.array_equal(critic.get_weights(), before)
