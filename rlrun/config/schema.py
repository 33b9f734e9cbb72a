"""The schema of an experiment: frozen pydantic objects, one for each section of the file.

Owns: what keys exist, their types, defaults and documentation (the string under each field is its
documentation: docs/config.md and ``rlrun init`` are generated from it). One schema stands behind
the YAML file and the fluent builder. Must not know: files, lines, overrides (loader.py), relations
between fields (checks.py), or any other room of rlrun.

Values are strict: a boolean is no number and a number in quotes is text. A whole float such as
``1e6`` is accepted where a whole number is asked for. YAML lists become tuples.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny

from rlrun.config.multi_agent_schema import MultiAgentConfig, PolicyConfig
from rlrun.config.schedule import Schedule
from rlrun.config.section import CodeSection, Count, Section, UseSpec, UseSpecs

# Parts of the schema that have files of their own, and are found here all the same.
__all__ = ["Count", "MultiAgentConfig", "PolicyConfig", "Schedule", "Section", "UseSpec"]


class EnvSpec(UseSpec):
    """The environment: ``CartPole-v1``, or ``{use: CartPole-v1, key: value}`` with arguments."""

    use: str
    """A gymnasium or EnvPool id, a name given to `register_env`, or "package.module:callable"."""


class EnvRunnersConfig(Section):
    """How experience is collected. The parameter names are those of RLlib's `env_runners()`."""

    env_runner_cls: str | None = None
    """Import path of a class to use instead of `EnvRunner`, for local and remote runners alike."""
    num_env_runners: int = Field(default=0, ge=0)
    """Ray actors that collect experience; 0 samples in the training process, without Ray."""
    num_envs_per_env_runner: Count = 1
    """Environments that one env runner steps together: one policy call serves all of them."""
    num_cpus_per_env_runner: float = Field(default=1.0, ge=0)
    """CPUs that Ray reserves for each env runner; may be a fraction."""
    num_gpus_per_env_runner: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves for each env runner; may be a fraction."""
    custom_resources_per_env_runner: dict[str, int | float] = Field(default_factory=dict)
    """Further Ray resources for each env runner, by name."""
    validate_env_runners_after_construction: bool = True
    """Wait until each new env runner has built its environments, and raise its own error if not."""
    sample_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds to wait for the env runners in one round of sampling; what comes later is dropped."""
    rollout_fragment_length: Count | Literal["auto"] = "auto"
    """Steps of each environment in a fragment; "auto" divides the train batch exactly."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """"complete_episodes" delivers whole episodes only, at least as many env steps as asked for."""
    env_to_module_connector: UseSpecs = ()
    """Connectors of your own that observations pass first: import paths, {use: ..., key: value}."""
    module_to_env_connector: UseSpecs = ()
    """Connectors of your own that the policy's actions pass first."""
    add_default_connectors_to_env_to_module_pipeline: bool = True
    """Preprocess and filter observations behind them; false hands on what they put out."""
    add_default_connectors_to_module_to_env_pipeline: bool = True
    """Stretch, clip and nest actions behind them; false hands on what they put out."""
    episode_lookback_horizon: int = Field(default=1, ge=0)
    """Steps of the running episode that those connectors may look back on."""
    sample_collector: str | None = None
    """"ColumnarCollector" (what null is), "SimpleListCollector", or the import path of another."""
    horizon: Count | None = None
    """Steps after which an episode is truncated; a time limit below it is raised to it."""
    soft_horizon: bool = False
    """At the horizon begin a new episode without resetting the environment, and without a flag."""
    no_done_at_end: bool = False
    """Learn from every end of an episode as from a truncation: `terminateds` is never true."""
    explore: bool = True
    """Sample actions from the policy's distribution; false takes the most probable one."""
    create_env_on_local_worker: bool = False
    """Also build the environment in the training process when there are remote env runners."""
    preprocessor_pref: Literal["deepmind", "rllib"] | None = "deepmind"
    """How Atari frames are prepared: "deepmind" warps them; null hands raw observations on."""
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    """"MeanStdFilter" normalises observations by their running mean and standard deviation."""
    use_worker_filter_stats: bool = True
    """Merge the filter statistics of the env runners; false throws them away."""
    update_worker_filter_stats: bool = True
    """Send the merged filter statistics to the env runners; false lets each keep its own."""
    gym_env_vectorize_mode: Literal["auto", "sync", "async", "vector_entry_point", "envpool"] = (
        "auto"
    )
    """"async" gives each environment a process; "envpool" steps EnvPool's, in threads of C++."""
    max_requests_in_flight_per_env_runner: Count = 1
    """Requests an env runner may have waiting; further ones are not sent."""
    sampler_perf_stats_ema_coef: float | None = Field(default=None, gt=0, le=1)
    """Weight of a new value in the running sampler timings; null averages since the start."""
    compress_observations: bool = False
    """Compress observations on their way to the learner: less traffic for more work."""
    disable_env_checking: bool = False
    """Skip the check of one reset and step of the environment before training starts."""


class ConnectorsConfig(Section):
    """What happens to actions and rewards between the policy and the environment."""

    normalize_actions: bool = True
    """Let the policy act in [-1, 1] and stretch its actions to the bounds of a bounded Box."""
    clip_actions: bool = False
    """Clip actions to the bounds of the action space before they reach the environment."""
    clip_rewards: bool | float | None = None
    """true learns from the reward's sign, a number clips to +-number, null is true for Atari."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""


MEMORY_SWITCHES = ("use_lstm", "use_gru", "use_attention")
"""Settings of `model` that put a memory behind the encoder; one of them at most."""


class ModelConfig(CodeSection):
    """The networks. With `use`, keys that are not named here are arguments of that class."""

    use: str | None = None
    """Import path of an `RLModule` subclass; null takes the default actor-critic network."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the class named by `use`; in a file they stand beside it."""
    hidden: tuple[Count, ...] = (64, 64)
    """Widths of the hidden layers; [] is a linear network."""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu"] = "tanh"
    """Activation of the hidden layers."""
    share_layers: bool | None = None
    """Let policy and value function share the encoder; null shares it for images only."""
    conv: tuple[tuple[Count, Count, Count], ...] | None = None
    """Convolutions as [channels, kernel, stride]; null takes the Nature CNN for images."""
    conv_head: Count = 512
    """Width of the layer after the convolutions."""
    log_std_init: float = 0.0
    """Logarithm of the standard deviation of continuous actions at the start."""
    free_log_std: bool = True
    """One learned standard deviation for each action; false makes it depend on the observation."""
    use_lstm: bool = False
    """Put an LSTM behind the encoder: the policy remembers what it saw in the episode."""
    use_gru: bool = False
    """Put a GRU there instead; the settings of the LSTM hold for it."""
    lstm_cell_size: Count = 256
    """Units of the LSTM or GRU."""
    lstm_use_prev_action: bool = False
    """Let the LSTM or GRU also see the action of the step before; zeros in the first."""
    lstm_use_prev_reward: bool = False
    """Let the LSTM or GRU also see the reward of the step before, as learning sees it."""
    use_attention: bool = False
    """Put attention over the last steps behind the encoder (GTrXL), in place of an LSTM or GRU."""
    attention_num_transformer_units: Count = 1
    """Units one after the other, each with a memory of its own."""
    attention_dim: Count = 64
    """Width of what a unit takes in and puts out."""
    attention_num_heads: Count = 1
    """Heads of each unit's attention."""
    attention_head_dim: Count = 32
    """Width of one head."""
    attention_memory: Count = 50
    """Steps before the present one that a unit attends to, when acting and when learning."""
    attention_position_wise_mlp_dim: Count = 32
    """Width of the hidden layer behind each unit's attention."""
    attention_init_gru_gate_bias: float = 2.0
    """How much a unit's gates lean to its input at first: 2 makes it nearly the identity."""
    attention_use_n_prev_actions: int = Field(default=0, ge=0)
    """Let attention also see the actions of so many steps before."""
    attention_use_n_prev_rewards: int = Field(default=0, ge=0)
    """Let attention also see the rewards of so many steps before, as learning sees them."""
    max_seq_len: Count = 20
    """Steps that gradients flow back through time; longer pieces of episodes are cut up."""


class TrainingConfig(Section):
    """What every algorithm's own config class starts from; these are the keys of `training`."""

    train_batch_size: Count = 2048
    """Env steps collected for one iteration, exactly."""
    lr: Schedule = 3e-4
    """Learning rate: a number, or a schedule [[env_steps, value], ...]."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount of future rewards."""
    grad_clip: float | None = Field(default=None, gt=0)
    """Bound on the gradients; null leaves them alone."""
    grad_clip_by: Literal["global_norm", "norm", "value"] = "global_norm"
    """What `grad_clip` bounds: the norm of all gradients, of each tensor, or each value."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """What makes a step of a gradient; IMPALA was published with "rmsprop"."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """Adam's epsilon."""
    rmsprop_decay: float = Field(default=0.99, ge=0, lt=1)
    """How much of RMSProp's mean square of the gradients stays in each step."""
    rmsprop_epsilon: float = Field(default=0.1, gt=0)
    """RMSProp's epsilon, which is added to the root of that mean."""


class LearnersConfig(Section):
    """Where and how the networks are trained."""

    num_learners: int = Field(default=0, ge=0)
    """Ray actors that share each minibatch; 0 trains in this process."""
    num_cpus_per_learner: float = Field(default=1.0, ge=0)
    """CPUs that each of these learners reserves."""
    num_gpus_per_learner: float = Field(default=0.0, ge=0)
    """GPUs of each, on which it trains then; a fraction lets several share one."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda|cuda:\d+)$")
    """"auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1"."""
    compile: bool = False
    """Compile the update with torch.compile: seconds at the start for a faster update."""
    num_threads: Count | None = None
    """Torch threads of the learner; null is 1 for small networks, torch's own choice for others."""


class ExplorationConfig(Section):
    """How actions deviate from the best known ones, where the policy itself is deterministic."""

    epsilon: Schedule = ((0, 1.0), (10_000, 0.05))
    """Probability of an action drawn uniformly; a schedule counts the env steps of all runners."""
    runner_exponent: float | None = Field(default=None, ge=0)
    """Let env runner i of n act with epsilon ** (1 + this * (i - 1) / (n - 1)), as Ape-X does with
    0.4 and 7; null gives all of them the same."""


class ReplayConfig(Section):
    """The buffer of past transitions that an off-policy algorithm learns from."""

    capacity: Count = 50_000
    """Transitions that are kept, of each policy; the oldest make room for new ones."""
    mode: Literal["independent", "lockstep"] = "independent"
    """Of several policies: sample each one's transitions by themselves; "lockstep" draws env steps,
    and takes all policies' transitions of those."""
    prioritized: bool = False
    """Sample by temporal-difference error; false samples uniformly."""
    alpha: float = Field(default=0.6, ge=0, le=1)
    """How far priorities count: 0 is uniform, 1 in proportion."""
    beta: Schedule = 0.4
    """How far weights make up for the uneven sampling, 1 fully; may be a schedule."""
    epsilon: float = Field(default=1e-6, gt=0)
    """Added to the error, so that no transition is lost for ever."""
    burn_in: int = Field(default=0, ge=0)
    """With a memory: steps before each replayed sequence that only bring the memory up to date."""
    store_in_checkpoints: bool = False
    """Write the buffer into checkpoints: exact resuming, at the buffer's size. If not, a resumed
    run fills it anew before it learns on."""


class EvaluationConfig(Section):
    """Episodes played beside the training, which they do not change."""

    interval: Count | None = None
    """Evaluate after every so many iterations; null never does."""
    episodes: Count = 10
    """Episodes of one evaluation, each started fresh."""
    num_envs: Count = 8
    """Environments that play at once; never more than there are episodes."""
    explore: bool = False
    """Sample actions; false takes the most probable ones."""
    seed: int | None = Field(default=None, ge=0)
    """Seed of the episodes; null derives it from the experiment's."""


class FaultToleranceConfig(Section):
    """What happens when env runners or environments fail. Names of RLlib's `fault_tolerance()`."""

    restart_failed_env_runners: bool = True
    """Start a lost env runner again, with its state; goes before `ignore_env_runner_failures`."""
    ignore_env_runner_failures: bool = False
    """Go on without an env runner that was lost."""
    max_num_env_runner_restarts: int = Field(default=1000, ge=0)
    """Restarts of any one env runner after which the run ends."""
    delay_between_env_runner_restarts_s: float = Field(default=0.0, ge=0)
    """Seconds to wait before an env runner is started again."""
    restart_failed_sub_environments: bool = False
    """Rebuild an environment that raised and drop its episode, instead of losing the env runner."""
    num_consecutive_env_runner_failures_tolerance: int = Field(default=100, ge=0)
    """Failures in a row, with nothing sampled between, after which the run ends."""
    env_runner_health_probe_timeout_s: float = Field(default=30.0, gt=0)
    """Seconds an env runner has to answer when it is asked whether it is well."""
    env_runner_restore_timeout_s: float = Field(default=1800.0, gt=0)
    """Seconds a restarted env runner has to take over its state."""


class CheckpointConfig(Section):
    """When the state of the run is written, and what is kept of it."""

    every: Count | None = None
    """Write a checkpoint after every so many iterations; null writes none on the way."""
    keep: Count | None = 3
    """Newest checkpoints that are kept, the best one always besides; null keeps all."""
    at_end: bool = True
    """Write a checkpoint when the run ends."""
    metric: str = "episode_return_mean"
    """Result key that decides which checkpoint is the best, `a/b` for nested ones."""
    mode: Literal["max", "min"] = "max"
    """Whether the best checkpoint has the highest or the lowest value of `metric`."""


class ReportConfig(Section):
    """What is told about the run, to whom, and how often."""

    smoothing_episodes: Count = 100
    """Finished episodes that `episode_return_mean` averages; all of an iteration's if more."""
    min_time_s_per_iteration: float | None = Field(default=None, ge=0)
    """Seconds an iteration takes at least; makes its length depend on the machine."""
    min_sample_timesteps_per_iteration: int | None = Field(default=None, ge=0)
    """Env steps that an iteration collects at least."""
    min_train_timesteps_per_iteration: int | None = Field(default=None, ge=0)
    """Env steps that an iteration trains on at least."""
    sinks: tuple[UseSpec, ...] = (UseSpec(use="console"), UseSpec(use="jsonl"))
    """Who receives the results: console, jsonl, tensorboard, or {use: "my.module:Sink", ...}."""


class SweepConfig(Section):
    """A search over settings: what `rlrun sweep` runs, and `rlrun train` does not look at."""

    space: dict[str, Any] = Field(default_factory=dict)
    """Settings to vary: {address: {grid: [...]}}, or choice, uniform, loguniform and others."""
    search: Literal["grid", "random", "optuna"] | None = None
    """Who names the points; null is grid if all of `space` is, else random."""
    trials: Count | None = None
    """Points that are drawn, each combined with every grid; must be given where one is drawn."""
    seeds: Count | tuple[Annotated[int, Field(ge=0)], ...] | None = None
    """Seeds that each point is tried with, or how many from the experiment's own on; null: that."""
    scheduler: UseSpec | None = None
    """Who ends trials early: asha, median, hyperband or pbt; arguments are those of Ray Tune."""
    metric: str | None = "episode_return_mean"
    """Result key by which trials are compared, its last value; null compares nothing."""
    mode: Literal["max", "min"] = "max"
    """Whether the best trial has the highest or the lowest value of `metric`."""
    concurrent: Count | None = None
    """Trials that run at once at most; null fills the machine."""


class ExperimentConfig(Section):
    """One experiment: everything that the run depends on."""

    name: str = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the folder under runs/; the file's own name where it is not given."""
    algorithm: str
    """A registered algorithm (`rlrun list algorithms`) or "package.module:Class"."""
    env: EnvSpec
    """A gymnasium id, a registered name, "package.module:make", or {use: ..., key: value}."""
    seed: int | None = Field(default=None, ge=0)
    """Where every random number of the run descends from; null draws one at the start."""
    stop: dict[str, int | float] = Field(default_factory=dict)
    """Result keys (`a/b` for nested ones) and the values that end the run, whichever is first."""
    env_runners: EnvRunnersConfig = EnvRunnersConfig()
    """How experience is collected."""
    model: ModelConfig = ModelConfig()
    """The networks."""
    training: SerializeAsAny[TrainingConfig]
    """The algorithm's own settings."""
    learners: LearnersConfig = LearnersConfig()
    """Where and how the networks are trained."""
    exploration: ExplorationConfig = ExplorationConfig()
    """How actions deviate from the best known ones; of DQN."""
    replay: ReplayConfig = ReplayConfig()
    """The buffer of past transitions; of DQN and SAC."""
    multi_agent: MultiAgentConfig = MultiAgentConfig()
    """Several policies, for environments with several agents."""
    connectors: ConnectorsConfig = ConnectorsConfig()
    """What happens to actions and rewards on their way."""
    callbacks: tuple[UseSpec, ...] = ()
    """Import paths of callback classes, or {use: ..., key: value}."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Episodes played beside the training."""
    fault_tolerance: FaultToleranceConfig = FaultToleranceConfig()
    """What happens when something fails."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the state of the run is written."""
    report: ReportConfig = ReportConfig()
    """What is told about the run."""
    sweep: SweepConfig = SweepConfig()
    """A search over settings, for `rlrun sweep`."""
