"""Parts of an algorithm: which modules and optimizers no checkpoint would have."""

import pytest
import torch

from rlrun import PPO, PPOConfig


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
