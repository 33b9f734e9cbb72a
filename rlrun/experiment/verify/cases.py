"""The reference table: which experiments `rlrun verify` trains, and the numbers they must reach.

Owns the data. It must not know how a case is trained or judged.

    case       an experiment file in configs/, its overrides, and one published number
    kind       what the number is a mean of; numbers of different kinds are never compared
    env steps  the budget; all of it is used where the number is of training, otherwise training
               may end before, at the goal of the file's `stop:`

Cases sample in the training process: seeds run side by side, so cores go to seeds. Where a case has
env runners of its own, its algorithm is about them.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["training", "goal", "evaluation"]

KINDS: dict[Kind, str] = {
    "training": "the mean return of the last 100 training episodes when training ends",
    "goal": "the highest such mean on the way: a goal counts as reached whenever it is reached",
    "evaluation": "the mean return of 100 episodes that the run's best checkpoint plays without "
    "exploration; best is the checkpoint with the highest mean in training",
}
"""What rlrun measures where a number of that kind was published."""

SOURCES: dict[str, str] = {
    "CleanRL": "https://docs.cleanrl.dev/rl-algorithms/overview/",
    "rl-baselines3-zoo": "https://github.com/DLR-RM/rl-baselines3-zoo",
    "RLlib": "https://github.com/ray-project/ray/tree/master/rllib/tuned_examples",
    "SLM-Lab": "https://github.com/kengz/SLM-Lab",
    "Tianshou": "https://github.com/thu-ml/tianshou/tree/master/test",
}
"""Who published, and where."""


@dataclass(frozen=True)
class Reference:
    """A published number."""

    number: float
    """Mean return; reached at this or above."""
    env_steps: int
    """Env steps it took, and the most that the case may take."""
    kind: Kind
    source: str
    """Key of SOURCES."""
    published: str
    """The number as it was published, and where exactly."""


@dataclass(frozen=True)
class Case:
    """One experiment and the number it is held against."""

    name: str
    algorithm: str
    env: str
    config: str
    """File in configs/."""
    reference: Reference
    overrides: tuple[str, ...] = ()
    """``KEY=VALUE``, laid over the file."""
    env_steps: int | None = None
    """Env steps to train if fewer than the reference's do; None takes its budget."""
    note: str = ""
    """Where the published experiment differs from this one, and what else a reader should know."""

    def all_overrides(self) -> list[str]:
        """The overrides of the case, its length among them."""
        budget = f"stop.env_steps={self.env_steps or self.reference.env_steps}"
        if self.reference.kind == "training":
            # To end at a lucky moment would flatter the number that training ends with.
            return [*self.overrides, "stop.episode_return_mean=null", budget]
        return [*self.overrides, budget]


_IN_PROCESS = ("env_runners.num_env_runners=0", "env_runners.num_envs_per_env_runner=16")
"""Two runners with eight environments each, in one process: the same batches."""

CASES: tuple[Case, ...] = (
    Case(
        "ppo-cartpole",
        "PPO",
        "CartPole-v1",
        "ppo_cartpole.yaml",
        Reference(500.0, 100_000, "evaluation", "rl-baselines3-zoo", "500 ± 0, one agent"),
        _IN_PROCESS,
    ),
    Case(
        "a2c-cartpole",
        "A2C",
        "CartPole-v1",
        "a2c_cartpole.yaml",
        Reference(500.0, 500_000, "evaluation", "rl-baselines3-zoo", "500 ± 0, one agent"),
        note="ends at a mean of 475 in training; the greedy policy drifts off the track from a few "
        "starts (seed 1 after all 500,000 env steps: 468)",
    ),
    Case(
        "pg-cartpole",
        "PG",
        "CartPole-v1",
        "pg_cartpole.yaml",
        Reference(195.0, 400_000, "evaluation", "Tianshou", "≥ 195, test_reinforce.py"),
    ),
    Case(
        "a3c-cartpole",
        "A3C",
        "CartPole-v1",
        "a3c_cartpole.yaml",
        Reference(150.0, 200_000, "goal", "RLlib", "≥ 150, cartpole-a3c.yaml"),
        note="published for CartPole-v0, whose episodes end after 200 steps",
    ),
    Case(
        "impala-cartpole",
        "IMPALA",
        "CartPole-v1",
        "impala_cartpole.yaml",
        Reference(450.0, 2_000_000, "goal", "RLlib", "≥ 450, cartpole_impala.py"),
        env_steps=500_000,
    ),
    Case(
        "appo-cartpole",
        "APPO",
        "CartPole-v1",
        "appo_cartpole.yaml",
        Reference(450.0, 2_000_000, "goal", "RLlib", "≥ 450, cartpole_appo.py"),
        env_steps=200_000,
    ),
    Case(
        "appo-frozenlake",
        "APPO",
        "FrozenLake-v1",
        "appo_frozenlake.yaml",
        Reference(0.99, 1_000_000, "goal", "RLlib", "≥ 0.99, frozenlake-appo-vtrace.yaml"),
        note="8x8 without holes and without slipping, at most 20 steps",
    ),
    Case(
        "ppo-acrobot",
        "PPO",
        "Acrobot-v1",
        "ppo_acrobot.yaml",
        Reference(-86.36, 500_000, "training", "CleanRL", "-86.36 ± 1.32, 3 seeds"),
        _IN_PROCESS,
    ),
    Case(
        "ppo-pendulum",
        "PPO",
        "Pendulum-v1",
        "ppo_pendulum.yaml",
        Reference(-174.9, 300_000, "training", "SLM-Lab", "-174.9, 4 sessions"),
        ("training.lr=[[0, 1e-3], [300_000, 0.0]]", "training.gamma=0.95"),
    ),
    Case(
        "ppo-lunarlander",
        "PPO",
        "LunarLander-v3",
        "ppo_lunarlander.yaml",
        Reference(242.1, 1_000_000, "evaluation", "rl-baselines3-zoo", "242.1 ± 31.8, one agent"),
        _IN_PROCESS,
        note="published for LunarLander-v2, the version before",
    ),
    Case(
        "ppo-pendulum-stretched",
        "PPO",
        "StretchedPendulum",
        "ppo_pendulum.yaml",
        Reference(-500.0, 400_000, "goal", "RLlib", "≥ -500, pendulum-transformed-actions-ppo"),
        ("env=rlrun.envs.examples:StretchedPendulum",),
        note="Pendulum-v1 whose actions are in [300, 500], a test of how actions are scaled",
    ),
    Case(
        "dqn-cartpole",
        "DQN",
        "CartPole-v1",
        "dqn_cartpole.yaml",
        Reference(450.0, 200_000, "goal", "RLlib", "≥ 450, cartpole_dqn.py"),
        env_steps=150_000,
        note="the size of the replay buffer was chosen after the seed 12 had been seen",
    ),
    Case(
        "rainbow-cartpole",
        "DQN",
        "CartPole-v1",
        "rainbow_cartpole.yaml",
        Reference(195.0, 200_000, "evaluation", "Tianshou", "≥ 195, test_rainbow.py"),
        ("stop.episode_return_mean=250",),
        env_steps=150_000,
    ),
    Case(
        "apex-cartpole",
        "DQN",
        "CartPole-v1",
        "apex_cartpole.yaml",
        Reference(150.0, 250_000, "goal", "RLlib", "≥ 150, cartpole-apex-dqn.yaml"),
        note="published for CartPole-v0, whose episodes end after 200 steps",
    ),
    Case(
        "r2d2-stateless-cartpole",
        "DQN",
        "StatelessCartPole",
        "r2d2_stateless_cartpole.yaml",
        Reference(100.0, 50_000, "goal", "RLlib", "≥ 100, stateless-cartpole-r2d2.yaml"),
    ),
    Case(
        "dqn-acrobot",
        "DQN",
        "Acrobot-v1",
        "dqn_acrobot.yaml",
        Reference(-91.54, 500_000, "training", "CleanRL", "-91.54 ± 7.20, 3 seeds"),
        env_steps=100_000,
    ),
    Case(
        "dqn-lunarlander",
        "DQN",
        "LunarLander-v3",
        "dqn_lunarlander.yaml",
        Reference(154.4, 100_000, "evaluation", "rl-baselines3-zoo", "154.4 ± 79.2, one agent"),
        note="published for LunarLander-v2, the version before",
    ),
    Case(
        "sac-cartpole",
        "SAC",
        "CartPole-v1",
        "sac_cartpole.yaml",
        Reference(150.0, 100_000, "goal", "RLlib", "≥ 150, cartpole-sac.yaml"),
    ),
    Case(
        "sac-pendulum",
        "SAC",
        "Pendulum-v1",
        "sac_pendulum.yaml",
        Reference(-157.0, 20_000, "evaluation", "rl-baselines3-zoo", "-157.0 ± 88.7, one agent"),
    ),
    Case(
        "sac-pendulum-stretched",
        "SAC",
        "StretchedPendulum",
        "sac_pendulum.yaml",
        Reference(-500.0, 400_000, "goal", "RLlib", "≥ -500, pendulum-transformed-actions-ppo"),
        ("env=rlrun.envs.examples:StretchedPendulum",),
        env_steps=20_000,
        note="Pendulum-v1 whose actions are in [300, 500]; published for PPO",
    ),
    Case(
        "sac-mountaincar-continuous",
        "SAC",
        "MountainCarContinuous-v0",
        "sac_mountaincar_continuous.yaml",
        Reference(94.7, 50_000, "evaluation", "rl-baselines3-zoo", "94.7 ± 1.1, one agent"),
        note="published with gSDE; noise lasts for several steps here too",
    ),
    Case(
        "ppo-halfcheetah",
        "PPO",
        "HalfCheetah-v5",
        "ppo_halfcheetah.yaml",
        Reference(1442.6, 1_000_000, "training", "CleanRL", "1442.6 ± 46.0, 3 seeds"),
        note="published for HalfCheetah-v4",
    ),
    Case(
        "ppo-hopper",
        "PPO",
        "Hopper-v5",
        "ppo_halfcheetah.yaml",
        Reference(2382.9, 1_000_000, "training", "CleanRL", "2382.9 ± 271.7, 3 seeds"),
        ("env=Hopper-v5",),
        note="published for Hopper-v4",
    ),
    Case(
        "ppo-walker2d",
        "PPO",
        "Walker2d-v5",
        "ppo_halfcheetah.yaml",
        Reference(2288.0, 1_000_000, "training", "CleanRL", "2288.0 ± 571.8, 3 seeds"),
        ("env=Walker2d-v5",),
        note="published for Walker2d-v4",
    ),
    Case(
        "sac-halfcheetah",
        "SAC",
        "HalfCheetah-v5",
        "sac_halfcheetah.yaml",
        Reference(9634.9, 1_000_000, "training", "CleanRL", "9634.9 ± 1423.7, 3 seeds"),
        note="published for HalfCheetah-v4",
    ),
    Case(
        "sac-hopper",
        "SAC",
        "Hopper-v5",
        "sac_halfcheetah.yaml",
        Reference(2310.5, 1_000_000, "training", "CleanRL", "2310.5 ± 342.8, 3 seeds"),
        ("env=Hopper-v5",),
        note="published for Hopper-v4",
    ),
    Case(
        "sac-walker2d",
        "SAC",
        "Walker2d-v5",
        "sac_halfcheetah.yaml",
        Reference(3591.5, 1_000_000, "training", "CleanRL", "3591.5 ± 911.3, 3 seeds"),
        ("env=Walker2d-v5",),
        note="published for Walker2d-v4",
    ),
    Case(
        "ppo-pong",
        "PPO",
        "ALE/Pong-v5",
        "ppo_pong.yaml",
        Reference(20.36, 10_000_000, "training", "CleanRL", "20.36 ± 0.20, 3 seeds"),
        note="published for PongNoFrameskip-v4",
    ),
)
"""All cases, in the order in which they run."""
