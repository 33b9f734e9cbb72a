"""Sample Factory's asynchronous APPO with its own training loop.

Its processes are rollout workers, one that computes actions for them, a batcher, a learner and the
runner, whose observer is the clock: it is called after each training step. Advantages are GAE's,
its default, and not V-trace's, which takes longer.
"""

import os
import shutil
import signal
import tempfile
from typing import Any

import gymnasium as gym
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from benchmarks.memory import descendants
from benchmarks.peers import asynchronous_driver, driver
from benchmarks.peers.asynchronous_driver import AsynchronousWork, Clock

NEVER_S = 1_000_000


def arguments(task: Any, work: AsynchronousWork, folder: str) -> list[str]:
    """The work as its command line."""
    settings = {
        "algo": "APPO",
        "env": work.env,
        "experiment": "benchmark",
        "train_dir": folder,
        "device": "cpu",
        "seed": task.seed,
        "num_workers": task.runners,
        "num_envs_per_worker": work.num_envs,
        "rollout": work.rollout_length,
        "recurrence": 1,
        "use_rnn": False,
        "batch_size": work.batch_size,
        "num_batches_per_epoch": 1,
        "num_epochs": 1,
        "learning_rate": work.lr,
        "gamma": work.gamma,
        "gae_lambda": work.lambda_,
        "ppo_clip_ratio": work.clip,
        "value_loss_coeff": work.vf_coeff,
        "exploration_loss_coeff": work.entropy_coeff,
        "max_grad_norm": work.grad_clip,
        "nonlinearity": "tanh",
        "actor_critic_share_weights": False,
        "reward_scale": 0.1,  # as in its example; else it warns of each loss
        "normalize_input": False,
        "normalize_returns": False,
        "save_every_sec": NEVER_S,
        "experiment_summaries_interval": NEVER_S,
        "train_for_seconds": NEVER_S,
    }
    hidden = ["--encoder_mlp_layers", *map(str, work.hidden)]
    return [*(f"--{name}={value}" for name, value in settings.items()), *hidden]


def make_env(name: str, *_: Any, **__: Any) -> gym.Env[Any, Any]:
    """The environment, in any process."""
    return gym.make(name)


class Observer(AlgoObserver):
    """Reports the rate after the last training step of the measurement, and ends everything."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        """See `AlgoObserver`."""
        if self._clock.is_done(sum(runner.env_steps.values())):
            names = "sample-factory", "torch", "gymnasium", "numpy"
            driver.report(**self._clock.result, versions=driver.versions(*names))
            for process in descendants(os.getpid())[1:]:
                os.kill(process, signal.SIGKILL)
            shutil.rmtree(runner.cfg.train_dir)
            os._exit(0)  # its own end saves checkpoints and waits for all processes


def main() -> None:
    task, work = asynchronous_driver.task_from_command_line(__doc__), AsynchronousWork()
    register_env(work.env, make_env)
    with tempfile.TemporaryDirectory() as folder:
        command = arguments(task, work, folder)
        parser, _ = parse_sf_args(argv=command)
        _, runner = make_runner(parse_full_cfg(parser, command))
        runner.register_observer(Observer(Clock(task.warmup_s, task.seconds)))
        runner.init()
        runner.run()


if __name__ == "__main__":
    main()
