"""The schema of an experiment: frozen pydantic objects, one for each section of the file.

Owns: all keys, their types, defaults and documentation (the string under each field, from which
docs/config.md and ``rlrun init`` are generated), for the YAML file and the fluent builder alike.
Must not know: files, lines, overrides (loader.py), relations between fields (checks.py), or any
other room of rlrun.

Values are strict: a boolean is not a number and a number in quotes is text. A whole float such as
``1e6`` is accepted where a whole number is asked for. YAML lists become tuples.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SerializeAsAny, model_validator

from rlrun.config.registry import ENVS, GIVEN
from rlrun.config.schedules import Coefficient, LearningRate, Probability, Schedule, Temperature
from rlrun.config.section import (
    CodeSection,
    Count,
    Epsilon,
    Fraction,
    NonNegative,
    Positive,
    Section,
    Seed,
    UseSpec,
    UseSpecs,
    Whole,
)

__all__ = ["Count", "Schedule", "Section", "UseSpec"]  # what further sections are made from


class EnvSpec(UseSpec):
    """The environment: ``CartPole-v1``, or ``{use: CartPole-v1, key: value}`` with arguments."""

    use: str
    """A gymnasium or EnvPool id, a name given to `register_env`, or "package.module:callable"."""

    def __getstate__(self) -> dict[Any, Any]:
        """The state with the environment's function: other processes lack registered names."""
        return {**super().__getstate__(), "creator": {**ENVS, **GIVEN}.get(self.use)}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        creator = state.pop("creator")
        super().__setstate__(state)
        if creator is not None:
            ENVS[self.use] = creator


class EnvRunnersConfig(Section):
    """How experience is collected. Parameters have the names of RLlib's `env_runners()`."""

    env_runner_cls: str | None = None
    """Import path of a class to use instead of `EnvRunner`, in training and in evaluation; training
    calls its `sample_fragment`."""
    num_env_runners: Whole = 0
    """Ray actors that collect experience; 0 samples in the training process, without Ray."""
    num_envs_per_env_runner: Count = 1
    """Sub-environments that an env runner steps together, with one policy call for all of them."""
    num_cpus_per_env_runner: NonNegative | Literal["auto"] = "auto"
    """CPUs that Ray reserves for each env runner; may be a fraction. "auto" is 1, or a fraction
    where there are fewer CPUs than env runners."""
    num_gpus_per_env_runner: NonNegative = 0.0
    """GPUs that Ray reserves for each env runner, whose policies act on the first; a fraction lets
    several share one. It pays for large networks: MLPs are faster on the CPU."""
    custom_resources_per_env_runner: dict[str, NonNegative] = Field(default_factory=dict)
    """Further Ray resources for each env runner, by name."""
    validate_env_runners_after_construction: bool = True
    """Wait until new env runners have built their environments; raise the error if one fails."""
    sample_timeout_s: Positive = 60.0
    """Seconds that an env runner has for a fragment; a slower one is restarted and asked again."""
    sample_async: bool = False
    """Sample the next round while the last one is learned from, with weights one update older."""
    rollout_fragment_length: Count | Literal["auto"] = "auto"
    """Steps of each sub-environment in a fragment; "auto" divides the train batch exactly."""
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = "truncate_episodes"
    """"truncate_episodes" cuts episodes where a fragment ends; "complete_episodes" collects whole
    episodes only, with at least as many env steps as asked for."""
    env_to_module_connector: UseSpecs = ()
    """Custom connectors applied first to observations: import paths, or {use: ..., key: value}."""
    module_to_env_connector: UseSpecs = ()
    """Custom connectors applied first to the policy's actions."""
    add_default_connectors_to_env_to_module_pipeline: bool = True
    """Then preprocess and filter observations; false leaves the custom connectors' output as is."""
    add_default_connectors_to_module_to_env_pipeline: bool = True
    """Then stretch, clip and nest actions; false leaves the custom connectors' output as is."""
    episode_lookback_horizon: Whole = 1
    """Steps of the running episode that custom connectors can look back on."""
    sample_collector: str | None = None
    """"ColumnarCollector" (also for null), "SimpleListCollector", or the import path of another."""
    horizon: Count | None = None
    """Env steps after which an episode is truncated; a lower time limit of the environment is
    raised to it. null adds no limit."""
    soft_horizon: bool = False
    """Begin a new episode at the horizon without a reset, and without marking the old one's end."""
    horizon_terminates: bool = False
    """Mark an episode that the horizon ends as terminated: nothing after it has a value."""
    no_done_at_end: bool = False
    """Treat every end of an episode as a truncation: `terminateds` is never true."""
    explore: bool = True
    """Sample actions from the policy's distribution; false takes the most probable ones."""
    create_env_on_local_worker: bool = False
    """Also build the environment in the training process when there are remote env runners."""
    env_wrappers: UseSpecs = ()
    """Wrappers around each sub-environment, the innermost first: names of gymnasium.wrappers,
    import paths, or {use: ..., key: value}."""
    preprocessor_pref: Literal["deepmind", "rllib"] | None = "deepmind"
    """"deepmind" adds DeepMind's wrappers to Atari games, "rllib" does not. Both flatten
    observations other than images for the networks; null passes raw observations on."""
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = "NoFilter"
    """"MeanStdFilter" normalises what comes from a Box by its running mean and deviation."""
    use_worker_filter_stats: bool = True
    """Merge the filter statistics of the env runners; false discards them."""
    update_worker_filter_stats: bool = True
    """Send the merged filter statistics to the env runners; false lets each keep its own."""
    gym_env_vectorize_mode: Literal["auto", "sync", "async", "vector_entry_point", "envpool"] = (
        "auto"
    )
    """"auto" and "sync" step the sub-environments one after the other, "async" in a process each;
    "vector_entry_point" takes gymnasium's vector version of the environment, "envpool" EnvPool's,
    in C++ threads."""
    remote_worker_envs: bool = False
    """Make each sub-environment a Ray actor of its own, on any machine of the cluster."""
    remote_env_batch_wait_ms: NonNegative | None = None
    """Act for the remote sub-environments that are ready after this many milliseconds, at least
    one; null waits for all, so that equal runs are equal."""
    max_requests_in_flight_per_env_runner: Count = 1
    """Most requests that an env runner has in flight at once."""
    sampler_perf_stats_ema_coef: float | None = Field(default=None, gt=0, le=1)
    """Weight of a new value in the moving average of sampler timings; null averages all values."""
    compress_observations: bool = False
    """Compress observations on their way to the learner: less traffic, more computation."""
    observation_check_interval: Count | None = 1000
    """Vector steps between checks that all observations are within the bounds of their space; the
    first check is after 10 steps. null checks only the first observations."""
    observations_out_of_bounds: Literal["warn", "error"] = "warn"
    """Reaction to an observation outside of its space: one warning, or an error."""
    disable_env_checking: bool = False
    """Skip the check at the start, in which the environment is reset and stepped once."""

    @property
    def cpus_per_env_runner(self) -> float:
        """CPUs as a number; "auto" is 1 until the resources are known."""
        cpus = self.num_cpus_per_env_runner
        return 1.0 if isinstance(cpus, str) else cpus


class ConnectorsConfig(Section):
    """How actions and rewards are transformed between the policy and the environment."""

    normalize_actions: bool = True
    """Let the policy act in [-1, 1] and stretch its actions to the bounds of each dimension."""
    clip_actions: bool = False
    """Clip actions to the bounds of the action space before they reach the environment."""
    clip_rewards: bool | Positive | None = None
    """true learns from the reward's sign, false from the reward; a number x clips it to [-x, x].
    null is true for Atari and false otherwise."""
    normalize_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""


MEMORY_SWITCHES = ("use_lstm", "use_gru", "use_attention")
"""Settings of `model` that put a memory after the encoder; one of them at most."""


class ModelConfig(CodeSection):
    """The networks. With `use`, keys that are not named here are arguments of that class."""

    use: str | None = None
    """Import path of an encoder or an `RLModule`; null takes the default actor-critic network."""
    hidden: tuple[Count, ...] = (64, 64)
    """Widths of the hidden layers; [] is a linear network. After convolutions, or an encoder that
    `use` names, only SAC has them."""
    head_hidden: tuple[Count, ...] = ()
    """Widths of hidden layers after those, or after convolutions, an encoder that `use` names or a
    memory; policy and value function never share them."""
    value_hidden: tuple[Count, ...] | None = None
    """Widths of the value function's own hidden layers, or SAC's critics'; null: the policy's."""
    privileged: tuple[str, ...] = ()
    """Entries of a Dict observation that only the value function, or SAC's critics, see."""
    activation: Literal["tanh", "relu", "elu", "silu", "gelu", "linear"] = "tanh"
    """Activation function of the hidden layers; "linear" applies none."""
    init: Literal["orthogonal", "uniform"] = "orthogonal"
    """Initial weights of layers; "uniform" is torch's own, with biases, which DQN always has."""
    share_layers: bool | None = None
    """Let policy and value function share the encoder; null shares all but hidden layers alone."""
    conv: tuple[tuple[Count, Count, Count], ...] | None = None
    """Convolutions as [channels, kernel, stride]; null takes the Nature CNN for images."""
    conv_head: Count = 512
    """Width of the layer after the convolutions."""
    conv_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the convolutions and the layer after them, when acting and when learning.
    bfloat16 is faster on CPUs and GPUs that support it; weights and gradients stay in float32."""
    distribution: str | None = None
    """Distribution of actions: "beta", "squashed_gaussian", "autoregressive", "deterministic" (for
    your algorithms), or the import path of a `Distribution`; null: the action space's default."""
    log_std_init: Annotated[float, Field(ge=-20, le=20)] = 0.0
    """Logarithm of the standard deviation of continuous actions at the start."""
    free_log_std: bool = True
    """One learned standard deviation for each action; false makes it depend on the observation, as
    it always does for a Box within a Dict or Tuple."""
    use_sde: bool = False
    """Explore by noise in the last layer's weights (gSDE): it depends on what the policy sees."""
    sde_sample_freq: Count | None = None
    """Steps for which that noise stays the same; null: an episode."""
    use_lstm: bool = False
    """Put an LSTM after the encoder: a memory of the episode so far."""
    use_gru: bool = False
    """Put a GRU after the encoder; the settings of the LSTM apply to it."""
    lstm_cell_size: Count = 256
    """Units of the LSTM or GRU."""
    lstm_use_prev_action: bool = False
    """Also feed the previous action to the LSTM or GRU; zeros in the first step."""
    lstm_use_prev_reward: bool = False
    """Also feed the previous reward to the LSTM or GRU, as clipped or normalised for learning."""
    use_attention: bool = False
    """Put attention over the last steps (GTrXL) after the encoder, instead of an LSTM or GRU."""
    attention_num_transformer_units: Count = 1
    """Transformer units in sequence, each with a memory of its own."""
    attention_dim: Count = 64
    """Width of a unit's input and output."""
    attention_num_heads: Count = 1
    """Heads of each unit's attention."""
    attention_head_dim: Count = 32
    """Width of one head."""
    attention_memory: Count = 50
    """Steps before the present one that a unit attends to, when acting and when learning."""
    attention_position_wise_mlp_dim: Count = 32
    """Width of the hidden layer after each unit's attention."""
    attention_init_gru_gate_bias: Annotated[float, Field(ge=-20, le=20)] = 2.0
    """Initial bias of a unit's gates towards its input; 2 makes it nearly the identity."""
    attention_use_n_prev_actions: Whole = 0
    """Also feed the actions of this many previous steps to attention."""
    attention_use_n_prev_rewards: Whole = 0
    """Also feed the rewards of this many previous steps, as clipped or normalised for learning."""
    max_seq_len: Count = 20
    """Steps of backpropagation through time; longer chunks of episodes are split."""


class TrainingConfig(Section):
    """Base of every algorithm's own settings; these are the keys of `training`."""

    train_batch_size: Count = 2048
    """Env steps collected for one iteration, exactly."""
    lr: LearningRate = 3e-4
    """Learning rate."""
    gamma: Fraction = 0.99
    """Discount factor of future rewards."""
    grad_clip: Positive | None = None
    """Bound that gradients are clipped to; null does not clip."""
    grad_clip_by: Literal["global_norm", "norm", "value"] = "global_norm"
    """Whether `grad_clip` bounds the norm of all gradients together, of each tensor, or values."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """The optimizer; IMPALA was published with "rmsprop"."""
    adam_epsilon: Epsilon = 1e-8
    """Adam's epsilon."""
    rmsprop_decay: float = Field(default=0.99, ge=0, lt=1)
    """Decay of RMSProp's mean square of the gradients."""
    rmsprop_epsilon: Epsilon = 0.1
    """RMSProp's epsilon, added to the mean square before its root is taken."""
    rmsprop_start: NonNegative = 1.0
    """RMSProp's mean square at the start: 1 as in TensorFlow, for small first steps; 0 in torch."""
    loss: str | None = None
    """Import path of hook(module, rows, loss, statistics), which returns the loss to use, and
    statistics to report besides the algorithm's. SAC calls it for both losses. null: no change."""
    learner_connectors: UseSpecs = ()
    """Custom connectors applied to each policy's train batch before it is learned from or stored
    for replay: classes, each made once and called as connector(batch), which returns the batch."""


class LearnersConfig(Section):
    """Where and how the networks are trained."""

    num_learners: Whole = 0
    """Ray actors that share the minibatches of each policy; 0 learns in the training process."""
    num_cpus_per_learner: NonNegative = 1.0
    """CPUs that Ray reserves for each learner."""
    num_gpus_per_learner: NonNegative = 0.0
    """GPUs that Ray reserves for each learner: 0 (it learns on the CPU), 1, or a part of one."""
    max_num_learner_restarts: Whole = 100
    """Most restarts of any one learner; the run ends when its process dies once more."""
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda|cuda:\d+)$")
    """Where to learn in this process: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:1"."""
    compile: bool = False
    """Compile the update with torch.compile: slower to start, faster to update."""
    cuda_graphs: bool = False
    """Record updates on a GPU as CUDA graphs and replay them, which runs none of their Python. Not
    for networks with a memory; a loss or network of yours must depend on its arguments alone."""
    num_threads: Annotated[int, Field(ge=1, le=4096)] | None = None
    """torch's threads in the learner; null is 1 for small networks, torch's default for others."""


ExplorationType = Literal[
    "EpsilonGreedy",
    "SoftQ",
    "StochasticSampling",
    "Random",
    "GaussianNoise",
    "OrnsteinUhlenbeckNoise",
    "ParameterNoise",
]


class ExplorationConfig(Section):
    """How actions deviate from the best ones in DQN and SAC."""

    type: ExplorationType | UseSpec | None = None
    """null is the algorithm's own kind: EpsilonGreedy for DQN, StochasticSampling for SAC. The
    import path of an `ExplorationStrategy`, or {use: ..., key: value}, explores by that."""
    random_steps: Whole = 0
    """Env steps of all env runners, at the start of a run, whose actions are uniformly random."""
    epsilon: Probability = ((0, 1.0), (10_000, 0.05))
    """EpsilonGreedy: probability of a uniformly drawn action; a schedule counts the env steps of
    all env runners together."""
    runner_exponent: NonNegative | None = None
    """Let env runner i of n act with epsilon ** (1 + this * (i - 1) / (n - 1)), as Ape-X does with
    0.4 and 7; null gives all runners the same."""
    temperature: Temperature = 1.0
    """SoftQ: actions are drawn with probabilities in proportion to exp(value / temperature)."""
    scale: Coefficient = 1.0
    """Factor on the noise of GaussianNoise and OrnsteinUhlenbeckNoise, and on `stddev` for
    ParameterNoise of a Box."""
    stddev: NonNegative = 0.1
    """GaussianNoise: standard deviation of the noise; ParameterNoise of a Box: root mean square of
    the change of actions that it aims at. In units of half the range of an action."""
    theta: float = Field(default=0.15, gt=0, le=1)
    """OrnsteinUhlenbeckNoise: fraction of the noise that decays in each step."""
    sigma: NonNegative = 0.04
    """OrnsteinUhlenbeckNoise: standard deviation of what each step adds, in units of `stddev`."""
    initial_stddev: NonNegative = 1.0
    """ParameterNoise: initial standard deviation of the noise in the weights. Each fragment adapts
    it by 1 %, until actions change as much as `epsilon`, or `stddev`, would change them."""


class ReplayConfig(Section):
    """The buffer of past transitions that an off-policy algorithm learns from."""

    capacity: Count = 50_000
    """Transitions kept for each policy, the newest ones. `rlrun check` tells their memory."""
    mode: Literal["independent", "lockstep"] = "independent"
    """Sampling for several policies: "independent" draws each policy's transitions by themselves;
    "lockstep" draws env steps, and takes all policies' transitions of these."""
    prioritized: bool = False
    """Sample by temporal-difference error; false samples uniformly."""
    alpha: Fraction = 0.6
    """Exponent of the priorities: 0 samples uniformly, 1 in proportion to the priorities."""
    beta: Probability = 0.4
    """How far importance weights correct for the prioritized sampling: 0 not at all, 1 fully."""
    epsilon: Epsilon = 1e-6
    """Added to the absolute error, so that every transition can be drawn."""
    burn_in: Whole = 0
    """Steps before each replayed sequence that only bring the memory's state up to date."""
    store_in_checkpoints: bool = False
    """Write the buffer into checkpoints, which makes resuming exact and checkpoints as large as the
    buffer; false fills an empty buffer before a resumed run learns again."""


class PolicySource(Section):
    """A policy of another run, whose weights a policy of this run begins with."""

    path: str
    """Folder of a checkpoint, or of a run, whose best checkpoint is taken."""
    policy: str | None = None
    """Id of the policy there; null: the same as here."""

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, data: Any) -> Any:
        return data if isinstance(data, dict) else {"path": data}


class PolicyConfig(CodeSection):
    """One policy. With `use`, keys that are not named here are its arguments."""

    use: str | None = None
    """Import path of a custom `Policy`; null is a network as in `model`."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the section `model` for this policy."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the section `training` for this policy."""
    exploration: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the section `exploration` for this policy; of DQN and SAC."""
    train: bool = True
    """Whether it learns; false keeps its initial weights."""
    spaces_of: str | None = None
    """Agent whose spaces it has; needed only if they do not follow from `agents`."""

    @model_validator(mode="before")
    @classmethod
    def _from_nothing(cls, data: Any) -> Any:
        return {} if data is None else data


class MultiAgentConfig(Section):
    """Several policies, for environments with several agents."""

    policies: dict[str, PolicyConfig] = Field(default_factory=dict)
    """Policy id -> its own settings, or a list of ids; with none, the environment has one agent."""
    agents: dict[str, Any] | str | None = None
    """Agent or pattern -> policy id, the first that fits; or code: choose(agent, episode). null:
    each agent has the policy of its own name, or the only policy."""
    policies_to_train: tuple[str, ...] | str | None = None
    """Ids of the policies that learn, or code: to_train(policy_id, batch), called for every train
    batch; null: all whose `train` is true."""
    count_steps_by: Literal["env_steps", "agent_steps"] = "env_steps"
    """Unit of the lengths of fragments and train batches; with "agent_steps" a batch may have a few
    more than asked for."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, data: Any) -> Any:
        ids = data.get("policies") if isinstance(data, dict) else None
        if isinstance(ids, list | tuple) and all(isinstance(policy_id, str) for policy_id in ids):
            return {**data, "policies": {policy_id: {} for policy_id in ids}}
        return data


class EvaluationConfig(Section):
    """Evaluation episodes between iterations; they do not influence training."""

    interval: Count | None = None
    """Iterations between evaluations; null never evaluates."""
    episodes: Count = 10
    """Episodes of one evaluation, each from its own reset."""
    env_steps: Count | None = None
    """Evaluate as many episodes as are needed for this many env steps; null goes by `episodes`."""
    num_envs: Count = 8
    """Sub-environments that are stepped together; at most the number of episodes."""
    explore: bool = False
    """Sample actions from the policy's distribution; false takes the most probable."""
    seed: Seed | None = None
    """Seed of the episodes; null derives it from the experiment's."""
    num_env_runners: Whole = 0
    """Ray actors that evaluate; 0 evaluates in the training process. The episodes are the same."""
    parallel_to_training: bool = False
    """Let these actors evaluate the weights that an iteration begins with while it is training."""
    env: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment that differ in evaluation; `use` names another environment."""
    env_runners: dict[str, Any] = Field(default_factory=dict)
    """Settings of `env_runners` that differ in evaluation; `sample_timeout_s` is 1e6 by default."""
    agents: dict[str, Any] | str | None = None
    """Like `multi_agent.agents`, but for evaluation, for instance with fixed opponents; null: the
    same as in training."""


class FaultToleranceConfig(Section):
    """Handling of env runners and environments that fail. Names of RLlib's `fault_tolerance()`."""

    restart_failed_env_runners: bool = True
    """Restart a lost env runner, with its state; overrides `ignore_env_runner_failures`."""
    ignore_env_runner_failures: bool = False
    """Go on without lost env runners."""
    max_num_env_runner_restarts: Whole = 1000
    """Most restarts of any one env runner; the run ends when it is lost once more."""
    delay_between_env_runner_restarts_s: NonNegative = 0.0
    """Seconds to wait before an env runner is restarted."""
    restart_failed_sub_environments: bool | Literal["auto"] = "auto"
    """Rebuild an environment that raised and drop its episode, instead of losing the env runner;
    auto does so once the env runner has run a whole episode, and in evaluation."""
    max_sub_environment_failures_per_1000_steps: NonNegative = 50.0
    """Failures of environments per 1,000 env steps of an env runner that are tolerated; beyond it
    the environment's error is raised instead."""
    env_timeout_s: Positive | None = None
    """Seconds that a call of an environment, or its constructor, may take. One that takes longer
    raises an error, which is treated like the environment's own; null sets no limit."""
    num_consecutive_env_runner_failures_tolerance: Whole = 100
    """Consecutive failures of env runners, nothing sampled in between, that end the run."""
    env_runner_restore_timeout_s: Positive = 1800.0
    """Seconds that a restarted env runner has to restore its state."""
    max_replayed_env_steps: Whole = 100_000
    """Longest unfinished episode, in env steps, that a resumed run or a restarted env runner brings
    back by repeating its actions, if the environment offers no state; longer ones start over."""
    env_runner_start_timeout_s: Positive = 60.0
    """Seconds that Ray has to start, and again to place an env runner and start its process."""


class CheckpointConfig(Section):
    """When the state of the run is written, and which checkpoints are kept."""

    every: Count | Literal["auto"] | None = "auto"
    """Iterations between checkpoints; auto writes one about every minute, after an iteration, and
    less often if writing takes over 2 % of the time; null writes none during the run."""
    keep: Count | None = 3
    """Newest checkpoints to keep, besides the best one; null keeps all."""
    at_end: bool = True
    """Write a checkpoint when the run ends."""
    metric: str = "episode_return_mean"
    """Result key that decides which checkpoint is the best, `a/b` for nested ones."""
    mode: Literal["max", "min"] = "max"
    """Whether the best checkpoint has the highest or the lowest value of `metric`."""


class ReportConfig(Section):
    """Reports about the run: their contents, their sinks, and how often they come."""

    smoothing_episodes: Count = 100
    """Last episodes that `episode_return_mean` averages; more if an iteration finishes more."""
    min_time_s_per_iteration: NonNegative | None = None
    """Least seconds of an iteration, whose length then depends on the machine; null: no minimum."""
    min_sample_timesteps_per_iteration: Whole | None = None
    """Least steps of an iteration, counted by `multi_agent.count_steps_by`; null: no minimum."""
    min_train_timesteps_per_iteration: Whole | None = None
    """Least rows an iteration learns from, of all agents, replayed or not; null: no minimum."""
    info_keys: tuple[str, ...] = ()
    """Keys of numbers in the info of each episode's last step, to report under `custom_metrics`, by
    policy if there are several agents. `is_success` is always reported, as
    `env_runners/success_rate`."""
    hist_stats: bool = False
    """Report the returns and lengths that `episode_return_mean` averages, as lists."""
    sinks: tuple[UseSpec, ...] = (UseSpec(use="console"), UseSpec(use="jsonl"))
    """Where results go: console, csv, tensorboard, wandb, mlflow, or code; jsonl is always on."""


class SweepConfig(Section):
    """A search over settings, or several seeds, for `rlrun sweep`; `rlrun train` ignores it."""

    space: dict[str, Any] = Field(default_factory=dict)
    """Settings to vary: {address: {grid: [...]}}, or choice, uniform, loguniform and others."""
    search: Literal["grid", "random", "optuna"] | None = None
    """How points are chosen; null is grid if `space` has grids only, else random."""
    trials: Count | None = None
    """Points to draw, each combined with all grids; required if `space` has distributions."""
    seeds: Count | tuple[Seed, ...] | None = None
    """Seeds of each point, or their number, counted from the experiment's own; null: only that."""
    scheduler: UseSpec | None = None
    """Ends trials early: asha, median, hyperband or pbt; arguments as in Ray Tune."""
    metric: str | None = "episode_return_mean"
    """Result key by whose last value trials are compared; null does not compare them."""
    mode: Literal["max", "min"] = "max"
    """Whether the best trial has the highest or the lowest value of `metric`."""
    concurrent: Count | None = None
    """Most trials that run at once; null runs as many as the machine has room for."""


class ExperimentConfig(Section):
    """One experiment: everything that the run depends on."""

    name: str = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")
    """Name of the folder under runs/; by default the name of the file."""
    algorithm: str
    """A registered algorithm (`rlrun list algorithms`) or "package.module:Class"."""
    env: EnvSpec
    """A gymnasium id, a registered name, "package.module:make", or {use: ..., key: value}."""
    seed: Seed | None = None
    """Seed of all random numbers of the run; null draws one at the start."""
    stop: dict[str, int | float] = Field(default_factory=dict)
    """Result keys (`a/b` for nested ones) and values; the run ends when the first is reached."""
    env_runners: EnvRunnersConfig = EnvRunnersConfig()
    """How experience is collected."""
    model: ModelConfig = ModelConfig()
    """The networks."""
    initial_weights: str | dict[str, Any] | None = None
    """Folder of a checkpoint, or of a run, whose best checkpoint is taken, with whose weights all
    policies begin. A mapping does so for some policies: {id: folder}, or {id: {path: folder,
    policy: id there}}. Paths are relative to the working directory; null begins with random
    weights."""
    policy: UseSpec | None = None
    """Import path of a custom `Policy`, or {use: ..., key: value}, which acts and learns in place
    of the networks; null uses the networks. With several agents each policy has its own `use`."""
    training: SerializeAsAny[TrainingConfig]
    """The algorithm's own settings."""
    learners: LearnersConfig = LearnersConfig()
    """Where and how the networks are trained."""
    exploration: ExplorationConfig = ExplorationConfig()
    """How actions deviate from the greedy ones; of DQN and SAC."""
    replay: ReplayConfig = ReplayConfig()
    """The buffer of past transitions; of DQN and SAC."""
    multi_agent: MultiAgentConfig = MultiAgentConfig()
    """Several policies, for environments with several agents."""
    connectors: ConnectorsConfig = ConnectorsConfig()
    """How actions and rewards are transformed."""
    callbacks: tuple[UseSpec, ...] = ()
    """Import paths of callback classes, or {use: ..., key: value}."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Evaluation episodes between iterations."""
    fault_tolerance: FaultToleranceConfig = FaultToleranceConfig()
    """Handling of env runners and environments that fail."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """When the state of the run is written."""
    report: ReportConfig = ReportConfig()
    """Reports about the run."""
    sweep: SweepConfig = SweepConfig()
    """A search over settings, for `rlrun sweep`."""

    @property
    def begun(self) -> "ExperimentConfig":
        """The experiment without `initial_weights`, for a run that restores its own checkpoint."""
        return self.model_copy(update={"initial_weights": None})


def sections(training: type[TrainingConfig]) -> dict[str, type[BaseModel]]:
    """Name -> schema of every section; the top of the file has the name ""."""
    found: dict[str, type[BaseModel]] = {"": ExperimentConfig}
    for name, field in ExperimentConfig.model_fields.items():
        annotation: Any = training if name == "training" else field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found[name] = annotation
    return found
