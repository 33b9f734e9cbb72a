"""A value function that sees more than its policy."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlrun import PPOConfig
from rlrun.config.problems import ConfigError
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.catalog import build_module
from rlrun.policies.masked_module import with_action_mask

USE = "rlrun.policies.central_critic:CentralCritic"
SPACE = spaces.Dict(
    {
        "action_mask": spaces.MultiBinary(3),
        "observation": spaces.Box(-1, 1, (2,), np.float32),
        "place": spaces.Discrete(4),
        "state": spaces.Box(-1, 1, (5,), np.float32),
    }
)


def module_of(space=SPACE, actions=None, **model):
    torch.manual_seed(0)
    settings = ModelConfig.model_validate({"use": USE, "hidden": (8,)} | model)
    return with_action_mask(build_module, space, actions or spaces.Discrete(3), settings)


def observations(**changed):
    rng = np.random.default_rng(0)
    seen = {
        "action_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
        "observation": torch.from_numpy(rng.normal(size=(2, 2)).astype(np.float32)),
        "place": torch.tensor([1, 3]),
        "state": torch.from_numpy(rng.normal(size=(2, 5)).astype(np.float32)),
    }
    return {col.OBS: seen | changed}


@pytest.mark.parametrize(
    ("value_only", "changed", "seen"),
    [
        (["state"], {"state": torch.ones(2, 5)}, False),
        (["state"], {"place": torch.tensor([0, 0])}, True),
        (["state", "place"], {"place": torch.tensor([0, 0])}, False),
    ],
)
def test_the_policy_does_not_see_what_is_for_the_value_function(value_only, changed, seen):
    module = module_of(value_only=value_only)
    before, after = (module.forward_train(observations(**part)) for part in ({}, changed))
    assert not torch.equal(before[col.VF_PREDS], after[col.VF_PREDS])
    inputs = (before[col.ACTION_DIST_INPUTS], after[col.ACTION_DIST_INPUTS])
    assert torch.equal(*inputs) is not seen
    assert inputs[0][0, 2] < -1e8  # what the mask forbids


def test_it_acts_and_values_as_it_trains():
    module, batch = module_of(), observations()
    trained = module.forward_train(batch)
    assert torch.equal(module.compute_values(batch), trained[col.VF_PREDS])
    acting = module.forward_inference(batch)
    assert acting.keys() == {col.ACTION_DIST_INPUTS}
    assert torch.equal(acting[col.ACTION_DIST_INPUTS], trained[col.ACTION_DIST_INPUTS])


def test_policy_and_value_function_share_no_weights():
    module = module_of(value_hidden=(16, 16))
    module.forward_train(observations())[col.VF_PREDS].sum().backward()
    learned = {
        name.split(".")[0] for name, part in module.named_parameters() if part.grad is not None
    }
    assert learned == {"vf_encoder", "vf"}
    assert module.vf.last.in_features == 16


def test_images_and_continuous_actions():
    space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (10, 10, 3), np.uint8), "state": spaces.Box(-1, 1, (5,))}
    )
    module = module_of(space, spaces.Box(-1, 1, (2,)))
    obs = {"camera": torch.zeros(4, 10, 10, 3, dtype=torch.uint8), "state": torch.ones(4, 5)}
    outputs = module.forward_train({col.OBS: obs})
    assert outputs[col.ACTION_DIST_INPUTS].shape == (4, 4)
    assert outputs[col.VF_PREDS].shape == (4,)


@pytest.mark.parametrize(
    ("space", "model", "message"),
    [
        (spaces.Box(-1, 1, (2,)), {}, "preprocessor_pref"),
        (SPACE, {"value_only": ["stat"]}, "did you mean state"),
        (SPACE, {"value_only": ["state", "place", "observation"]}, "nothing is left"),
        (SPACE, {"share_layers": True}, "two networks"),
    ],
)
def test_what_it_cannot_do_is_said(space, model, message):
    with pytest.raises(ConfigError, match=message):
        module_of(space, **model)


class Promise(gym.Env):
    """The reward was announced to the critic alone."""

    observation_space = spaces.Dict(
        {"observation": spaces.Box(0, 1, (1,)), "state": spaces.Box(0, 1, (1,))}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.promised = np.float32([self.np_random.integers(2)])
        return {"observation": np.zeros(1, np.float32), "state": self.promised}, {}

    def step(self, action):
        last = {"observation": np.zeros(1, np.float32), "state": np.zeros(1, np.float32)}
        return last, float(self.promised[0]), True, False, {}


def test_ppo_learns_the_values_of_states_that_the_policy_does_not_see(built):
    config = (
        PPOConfig()
        .environment(Promise)
        .env_runners(num_envs_per_env_runner=8, preprocessor_pref=None)
        .model(hidden=[16], use=USE)
        .training(train_batch_size=128, minibatch_size=32, num_epochs=10, lr=1e-2)
        .debugging(seed=1)
    )
    algorithm = built(config)
    for _ in range(3):
        result = algorithm.train()
    statistics = result["learners"]["default_policy"]["learner_stats"]
    assert statistics["vf_explained_variance"] > 0.9
