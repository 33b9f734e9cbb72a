"""Runners of environments with several agents, and their batches by agent."""

from collections import defaultdict

from rlrun.config.policies import PolicySettings
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, ModelConfig, TrainingConfig
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import MultiAgentSpec, RunnerSpec, SampleRequest

ECHO = PolicySettings(ModelConfig(), TrainingConfig(), use="scripted_agents:Echo")
MLP = PolicySettings(ModelConfig(hidden=(8,)), TrainingConfig())
LSTM = PolicySettings(
    ModelConfig(
        hidden=(4,),
        use_lstm=True,
        lstm_cell_size=4,
        max_seq_len=5,
        lstm_use_prev_action=True,
        lstm_use_prev_reward=True,
    ),
    TrainingConfig(),
)
EXAMPLES = "rlrun.envs.multi_agent_examples"


def make(env, policies, agents=None, *, num_envs=1, by_agent=False, spec=None, index=0, **settings):
    env = EnvSpec.model_validate(env)
    # The scripted one insists on certain actions.
    settings.setdefault("disable_env_checking", env.use.startswith("scripted_agents:"))
    runner = RunnerSpec(
        env,
        settings=EnvRunnersConfig(num_envs_per_env_runner=num_envs, **settings),
        multi_agent=MultiAgentSpec(policies, agents, by_agent),
        **(spec or {}),
    )
    return EnvRunner(runner, runner_index=index)


def cartpole(policies, *, agents=2, **more):
    return make({"use": f"{EXAMPLES}:MultiAgentCartPole", "num_agents": agents}, policies, **more)


def sample(runner, fragment, length):
    return runner.sample_fragment(SampleRequest(fragment, length))


def by_agent(batches):
    """(sub-environment, episode, agent index) -> rows, in the order of the batches."""
    found = defaultdict(list)
    for batch in batches:
        for policy_batch in batch.as_multi_agent().policy_batches.values():
            for row in policy_batch.rows():
                key = row["env_id"], row["eps_id"] & 0xFFFF, row["agent_index"]
                found[key].append(row)
    return found


def played(rows):
    return [
        (
            *(float(row["obs"][0]), float(row["new_obs"][0]), float(row["rewards"]), row["t"]),
            *(bool(row["terminateds"]), bool(row["truncateds"])),
        )
        for row in rows
    ]
