"""RLlib's APPO and IMPALA on its new API stack: sampling in actors, learning in the driver."""

import logging
from typing import Any

import ray
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.peers import asynchronous_driver, driver
from benchmarks.peers.asynchronous_driver import AsynchronousWork, Clock

STEPS_SO_FAR = "num_env_steps_sampled_lifetime"


def measure(task: Any) -> dict[str, float]:
    """Rate of the iterations after the warm-up."""
    work = AsynchronousWork()
    config = APPOConfig() if task.algorithm == "appo" else IMPALAConfig()
    network = DefaultModelConfig(
        fcnet_hiddens=list(work.hidden), fcnet_activation="tanh", vf_share_layers=False
    )
    config = (
        config.environment(work.env)
        .env_runners(
            num_env_runners=task.runners,
            num_envs_per_env_runner=work.num_envs,
            rollout_fragment_length=work.rollout_length,
        )
        .learners(num_learners=0)
        .rl_module(model_config=network)
        .training(
            train_batch_size_per_learner=work.batch_size,
            lr=work.lr,
            gamma=work.gamma,
            vf_loss_coeff=work.vf_coeff,
            entropy_coeff=work.entropy_coeff,
            grad_clip=work.grad_clip,
        )
        .reporting(min_time_s_per_iteration=1)
        .debugging(seed=task.seed, log_level="ERROR")
    )
    if task.algorithm == "appo":
        config = config.training(clip_param=work.clip, use_kl_loss=False, lambda_=work.lambda_)
    ray.init(num_cpus=task.runners + 1, logging_level=logging.ERROR, log_to_driver=False)
    algorithm, clock = config.build_algo(), Clock(task.warmup_s, task.seconds)
    while not clock.is_done(int(algorithm.train()[STEPS_SO_FAR])):
        pass
    return clock.result


def main() -> None:
    task = asynchronous_driver.task_from_command_line(__doc__)
    versions = driver.versions("ray", "torch", "gymnasium", "numpy")
    driver.report(**measure(task), versions=versions)


if __name__ == "__main__":
    main()
