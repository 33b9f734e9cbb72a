"""rlrun's DQN and SAC through its public Python API; the times of the phases are the result's."""

from typing import Any

from benchmarks.peers import driver, replay_driver
from benchmarks.peers.driver import Iteration
from benchmarks.peers.replay_driver import DQNWork, SACWork
from rlrun import DQNConfig, SACConfig

STEPS_OF_AN_ITERATION = 500


def dqn_config() -> DQNConfig:
    """`DQNWork` as a config of rlrun."""
    work = DQNWork()
    return (
        DQNConfig()
        .environment(work.env)
        .env_runners(rollout_fragment_length=work.steps_per_update)
        .model(hidden=list(work.hidden), activation="relu")
        .training(
            train_batch_size=STEPS_OF_AN_ITERATION,
            lr=work.lr,
            gamma=work.gamma,
            minibatch_size=work.minibatch_size,
            training_intensity=work.minibatch_size / work.steps_per_update,
            num_steps_sampled_before_learning_starts=work.learning_starts,
            target_network_update_freq=work.target_every,
            double_q=False,
            dueling=False,
            grad_clip=None,
        )
        .exploration(epsilon=work.epsilon)
        .replay(capacity=work.buffer_size)
    )


def sac_config() -> SACConfig:
    """`SACWork` as a config of rlrun."""
    work = SACWork()
    return (
        SACConfig()
        .environment(work.env)
        .model(hidden=list(work.hidden), activation="relu")
        .training(
            train_batch_size=STEPS_OF_AN_ITERATION,
            lr=work.lr,
            gamma=work.gamma,
            minibatch_size=work.minibatch_size,
            training_intensity=work.minibatch_size,
            num_steps_sampled_before_learning_starts=work.learning_starts,
            tau=work.tau,
        )
        .replay(capacity=work.buffer_size)
    )


def measure(task: Any) -> dict[str, Any]:
    """Rate of the iterations after the warm-up."""
    config = dqn_config() if task.algorithm == "dqn" else sac_config()
    algorithm = config.learners(device="cpu", num_threads=1).debugging(seed=task.seed).build()

    def train() -> Iteration:
        result = algorithm.train()
        timers = result["timers"]
        return Iteration(result["env_steps_this_iter"], timers["sample_s"], timers["learn_s"])

    return driver.measure_throughput(train, warmup_steps=task.warmup_steps, steps=task.steps)


def main() -> None:
    task = replay_driver.task_from_command_line(__doc__)
    driver.report(**measure(task), versions=driver.versions("rlrun", "torch", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
