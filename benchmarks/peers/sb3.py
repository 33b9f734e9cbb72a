"""Stable-Baselines3's PPO, and RecurrentPPO of sb3-contrib, where networks have a memory.

Sampling is `collect_rollouts` (GAE included), learning is `train`. Several agents come as a vector
of environments by SuperSuit, as PettingZoo's tutorials have it.
"""

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor

from benchmarks.peers import driver
from benchmarks.peers.driver import LSTM_SIZE, WORKS, EqualWork, Iteration

# hyperparams/ppo.yml of DLR-RM/rl-baselines3-zoo, CartPole-v1; lin_x falls from x to 0.
ZOO_CARTPOLE: dict[str, Any] = {
    "n_steps": 32,
    "batch_size": 256,
    "gae_lambda": 0.8,
    "gamma": 0.98,
    "n_epochs": 20,
    "ent_coef": 0.0,
    "learning_rate": lambda remaining: remaining * 0.001,
    "clip_range": lambda remaining: remaining * 0.2,
}
ZOO_TOTAL_STEPS = 100_000
ZOO_NUM_ENVS = 8


class Timed:
    """Measures the last rollout and the last update of the class behind it."""

    iteration = Iteration(env_steps=0)

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
        start = time.perf_counter()
        go_on = super().collect_rollouts(*args, **kwargs)
        self.iteration.sampling_s = time.perf_counter() - start
        return go_on

    def train(self) -> None:
        start = time.perf_counter()
        super().train()
        self.iteration.learning_s = time.perf_counter() - start


class TimedPPO(Timed, PPO):
    """PPO that measures itself."""


class StopWhenSolved(BaseCallback):
    """Stops at the first rollout after which the last 100 episodes average 475."""

    def _on_rollout_end(self) -> None:
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        full = len(returns) == driver.SOLVED_WINDOW
        if full and sum(returns) / len(returns) >= driver.SOLVED_RETURN:
            self.solved_s = driver.seconds_since_start()
            self.solved_env_steps = self.num_timesteps

    def _on_step(self) -> bool:
        return not hasattr(self, "solved_s")


def make_environments(work: EqualWork, num_envs: int, seed: int) -> Any:
    """A DummyVecEnv of `num_envs` monitored environments, as in SB3's documentation."""
    name = work.env
    if work.agents > 1:
        import supersuit

        agents = supersuit.pettingzoo_env_to_vec_env_v1(driver.import_environment(name)())
        vector = supersuit.concat_vec_envs_v1(agents, num_envs, base_class="stable_baselines3")
        return VecMonitor(vector)
    if work.network == "cnn":
        import ale_py

        gym.register_envs(ale_py)
        return VecFrameStack(make_atari_env(name, n_envs=num_envs, seed=seed), n_stack=4)
    make = driver.import_environment(name) if ":" in name else lambda: gym.make(name)
    return make_vec_env(make, n_envs=num_envs, seed=seed)


def model_class(work: EqualWork) -> tuple[Any, str, dict[str, Any]]:
    """The algorithm, its policy, and what the policy is given."""
    match work.network:
        case "cnn":
            return TimedPPO, "CnnPolicy", {}
        case "lstm":
            from sb3_contrib import RecurrentPPO

            timed = type("TimedRecurrentPPO", (Timed, RecurrentPPO), {})
            shared = {"shared_lstm": True, "enable_critic_lstm": False}
            return timed, "MlpLstmPolicy", {"lstm_hidden_size": LSTM_SIZE, "net_arch": [], **shared}
    sizes = {"pi": list(work.hidden), "vf": list(work.hidden)}
    return TimedPPO, "MlpPolicy", {"net_arch": sizes, "activation_fn": torch.nn.Tanh}


def trainer(task: Any) -> Callable[[], Iteration]:
    """A function that runs one iteration of the work."""
    work = WORKS[task.work]
    algorithm, policy, policy_kwargs = model_class(work)
    model = algorithm(
        policy,
        make_environments(work, work.num_envs, task.seed),
        learning_rate=work.lr,
        n_steps=work.rollout_length,
        batch_size=work.minibatch_size,
        n_epochs=work.num_epochs,
        gamma=work.gamma,
        gae_lambda=work.lambda_,
        clip_range=work.clip,
        clip_range_vf=work.vf_clip,
        ent_coef=work.entropy_coeff,
        vf_coef=work.vf_coeff,
        max_grad_norm=work.grad_clip,
        policy_kwargs=policy_kwargs,
        seed=None if work.agents > 1 else task.seed,  # which SuperSuit's vectors do not take
        device="cpu",
    )

    def train() -> Iteration:
        model.iteration = Iteration(env_steps=work.batch_size)
        model.learn(work.batch_size, reset_num_timesteps=False)
        return model.iteration

    return train


def solve(task: Any) -> dict[str, Any]:
    """Trains with the zoo's settings until solved or until the zoo's number of steps."""
    environments = make_environments(EqualWork(), ZOO_NUM_ENVS, task.seed)
    model = PPO("MlpPolicy", environments, **ZOO_CARTPOLE, seed=task.seed, device="cpu")
    callback = StopWhenSolved()
    model.learn(min(ZOO_TOTAL_STEPS, task.max_steps), callback=callback)
    return {
        "solved_s": getattr(callback, "solved_s", None),
        "env_steps": getattr(callback, "solved_env_steps", model.num_timesteps),
    }


def main() -> None:
    task = driver.task_from_command_line(__doc__)
    torch.set_num_threads(1)
    if task.task == "solve":
        result = solve(task)
    elif task.task == "start_up":
        result = driver.measure_start_up(trainer(task))
    else:
        result = driver.measure_throughput(
            trainer(task), warmup_steps=task.warmup_steps, steps=task.steps
        )
    names = ("stable-baselines3", "sb3-contrib", "supersuit", "ale-py", "mujoco")
    driver.report(**result, versions=driver.versions(*names, "torch", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
