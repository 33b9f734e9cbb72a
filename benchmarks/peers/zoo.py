"""Stable-Baselines3 as rl-baselines3-zoo trains it: `rl_zoo3.train`, then 100 episodes."""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from rl_zoo3 import ALGOS
from rl_zoo3.train import train
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from benchmarks.environments import NumberedStarts
from benchmarks.peers import driver


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm", choices=sorted(ALGOS), required=True)
    parser.add_argument("--env", required=True, help="gymnasium id")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--episodes", type=int, required=True, help="of the evaluation")
    parser.add_argument("--numbered-starts", action="store_true", help="of these episodes")
    task = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        words = ["--algo", task.algorithm, "--env", task.env, "--seed", str(task.seed)]
        words += ["--n-timesteps", str(task.steps), "--log-folder", scratch, "--device", "cpu"]
        # Without evaluations on the way: they take time, and choose nothing here.
        sys.argv = ["train", *words, "--eval-freq", "-1", "--num-threads", "1", "--verbose", "0"]
        train()
        model = ALGOS[task.algorithm].load(next(Path(scratch).rglob(f"{task.env}.zip")))
        starts = NumberedStarts if task.numbered_starts else None
        environment: VecEnv = make_vec_env(task.env, seed=1000 + task.seed, wrapper_class=starts)
        for statistics in Path(scratch).rglob("vecnormalize.pkl"):
            environment = VecNormalize.load(str(statistics), environment)
            environment.training = environment.norm_reward = False
        returns, _ = evaluate_policy(
            model, environment, task.episodes, deterministic=True, return_episode_rewards=True
        )
    driver.report(
        evaluation=sum(returns) / len(returns),
        env_steps=model.num_timesteps,
        versions=driver.versions("stable-baselines3", "rl_zoo3", "torch", "gymnasium"),
    )


if __name__ == "__main__":
    main()
