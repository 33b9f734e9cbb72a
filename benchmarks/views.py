"""The cost of views: sampling with the previous action and reward, and without, same network.

    python -m benchmarks.views --rounds 7

Both networks are two layers of 64 in torch over as many inputs; the plain one is given constants in
place of the views. Rounds alternate, so that a slow minute of the machine affects both.
"""

import argparse
import statistics
import time

import torch

from rlrun.config.schema import EnvRunnersConfig, EnvSpec, ModelConfig
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.rl_module import RLModule
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest

NUM_ENVS, LENGTH = 8, 512


class Plain(RLModule):
    """Two layers over the observation and two constants."""

    def __init__(self, observation_space, action_space, model):
        super().__init__(observation_space, action_space, model)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(observation_space.shape[0] + 2, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, self.distribution.num_inputs),
        )

    def further_inputs(self, batch):
        zeros = torch.zeros(len(batch["obs"]))
        return zeros, zeros

    def forward_train(self, batch):
        first, second = self.further_inputs(batch)
        seen = torch.cat([batch["obs"], first[:, None], second[:, None]], dim=1)
        return {"action_dist_inputs": self.net(seen)}


class WithPrevious(Plain):
    """The same over the observation and the action and reward of the step before."""

    def __init__(self, observation_space, action_space, model):
        super().__init__(observation_space, action_space, model)
        self.view_requirements["prev_actions"] = ViewRequirement("actions", shift=-1)
        self.view_requirements["prev_rewards"] = ViewRequirement("rewards", shift=-1)

    def further_inputs(self, batch):
        return batch["prev_actions"].float(), batch["prev_rewards"]


def runner_of(module: type[RLModule]) -> EnvRunner:
    return EnvRunner(
        RunnerSpec(
            EnvSpec(use="CartPole-v1"),
            EnvRunnersConfig(num_envs_per_env_runner=NUM_ENVS),
            model=ModelConfig(use=f"benchmarks.views:{module.__name__}"),
        )
    )


def steps_per_s(runner: EnvRunner, fragment: int) -> float:
    began = time.process_time()
    reply = runner.sample_fragment(SampleRequest(fragment, LENGTH))
    return reply.env_steps / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    plain, viewing = runner_of(Plain), runner_of(WithPrevious)
    ratios = []
    for fragment in range(rounds + 1):
        rates = steps_per_s(plain, fragment), steps_per_s(viewing, fragment)
        if fragment:  # the first one warms up
            ratios.append(rates[1] / rates[0])
            print(f"plain {rates[0]:9,.0f}  with views {rates[1]:9,.0f} env steps per CPU second")
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
