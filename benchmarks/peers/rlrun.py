"""rlrun's PPO through its public Python API; the times of the phases are from its result.

With n runners each has all of the environments and samples 1/n of the same batch.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.peers import driver
from benchmarks.peers.driver import LSTM_SIZE, WORKS, EqualWork, Iteration
from rlrun import PPOConfig


def trainer(task: Any) -> Callable[[], Iteration]:
    """A function that runs one iteration of the work."""
    work = WORKS[task.work]
    config = (
        PPOConfig()
        .environment(work.env)
        .env_runners(
            num_env_runners=task.runners,
            num_envs_per_env_runner=work.num_envs,
            sample_async=task.sample_async,
            gym_env_vectorize_mode="vector_entry_point" if task.vector_env else "auto",
        )
        .model(**network(work), conv_dtype="bfloat16" if task.bfloat16 else "float32")
        .training(
            train_batch_size=work.batch_size // work.agents,
            minibatch_size=work.minibatch_size,
            num_epochs=work.num_epochs,
            lr=work.lr,
            gamma=work.gamma,
            lambda_=work.lambda_,
            clip_param=work.clip,
            vf_clip_param=work.vf_clip,
            kl_coeff=work.kl_coeff,
            vf_loss_coeff=work.vf_coeff,
            entropy_coeff=work.entropy_coeff,
            grad_clip=work.grad_clip,
        )
        .learners(device="cpu", compile=task.compile, num_threads=1)
        .debugging(seed=task.seed)
    )
    if work.agents > 1:
        config = config.multi_agent(policies=["shared"])
    algorithm = config.build()

    def train() -> Iteration:
        result = algorithm.train()
        timers = result["timers"]
        rows = work.agents * result["env_steps_this_iter"]
        return Iteration(rows, timers["sample_s"], timers["learn_s"])

    return train


def network(work: EqualWork) -> dict[str, Any]:
    """The section `model`."""
    match work.network:
        case "cnn":
            return {}  # what images get
        case "lstm":
            sizes = {"lstm_cell_size": LSTM_SIZE, "max_seq_len": work.rollout_length}
            return {"hidden": [], "use_lstm": True, **sizes}
    return {"hidden": list(work.hidden), "activation": "tanh", "share_layers": False}


def main() -> None:
    task = driver.task_from_command_line(__doc__)
    if task.task == "solve":
        # Users type `rlrun train`; benchmarks/time_to_solve.py runs that command.
        raise SystemExit("rlrun's time to solve is measured through its command line")
    if task.task == "start_up":
        result = driver.measure_start_up(trainer(task))
    else:
        result = driver.measure_throughput(
            trainer(task), warmup_steps=task.warmup_steps, steps=task.steps
        )
    driver.report(**result, versions=driver.versions("rlrun", "torch", "ray", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
