"""Networks of a user's own: an encoder, and a whole module."""

import torch
from torch import nn

from rlrun import RLModule


class SineEncoder(nn.Module):
    """One layer."""

    def __init__(self, observation_space, width):
        super().__init__()
        self.layer, self.output_size = nn.Linear(observation_space.shape[0], width), width

    def forward(self, obs):
        return torch.sin(self.layer(obs))


class OwnModule(RLModule):
    """Policy and value function on one layer."""

    def __init__(self, observation_space, action_space, model):
        super().__init__(observation_space, action_space, model)
        self.encoder = SineEncoder(observation_space, 6)
        self.pi = nn.ModuleDict({"0": nn.Linear(6, self.distribution.num_inputs)})
        self.vf = nn.ModuleDict({"0": nn.Linear(6, 1)})

    def forward_train(self, batch):
        features = self.encoder(batch["obs"])
        values = self.vf["0"](features)[:, 0]
        return {"action_dist_inputs": self.pi["0"](features), "vf_preds": values}
