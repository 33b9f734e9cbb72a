"""rlrun's APPO and IMPALA through its public Python API."""

from typing import Any

from benchmarks.peers import asynchronous_driver, driver
from benchmarks.peers.asynchronous_driver import AsynchronousWork, Clock
from rlrun import APPOConfig, IMPALAConfig


def measure(task: Any) -> dict[str, float]:
    """Rate of the iterations after the warm-up."""
    work = AsynchronousWork()
    config = APPOConfig() if task.algorithm == "appo" else IMPALAConfig()
    config = (
        config.environment(work.env)
        .env_runners(
            num_env_runners=task.runners,
            num_envs_per_env_runner=work.num_envs,
            rollout_fragment_length=work.rollout_length,
        )
        .model(hidden=list(work.hidden), activation="tanh", share_layers=False)
        .training(
            train_batch_size=work.batch_size,
            lr=work.lr,
            gamma=work.gamma,
            lambda_=work.lambda_,
            vf_loss_coeff=work.vf_coeff,
            entropy_coeff=work.entropy_coeff,
            grad_clip=work.grad_clip,
        )
        .learners(device="cpu", num_threads=1)
        .debugging(seed=task.seed)
    )
    if task.algorithm == "appo":
        config = config.training(clip_param=work.clip)
    algorithm, clock = config.build(), Clock(task.warmup_s, task.seconds)
    step = algorithm.batches.next if task.sampling_alone else algorithm.train
    while not clock.is_done(algorithm.env_steps):
        step()
    algorithm.stop()
    return clock.result


def main() -> None:
    task = asynchronous_driver.task_from_command_line(__doc__)
    versions = driver.versions("rlrun", "torch", "ray", "gymnasium", "numpy")
    driver.report(**measure(task), versions=versions)


if __name__ == "__main__":
    main()
