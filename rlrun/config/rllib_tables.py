"""Tables for the translation of RLlib's experiment files (rllib_file.py).

Owns: algorithms, defaults and environments of RLlib 2.4, the last release with all ten algorithms,
and the addresses of its nested keys in rlrun. Names that take the same value in any form of config
are in retired.py. Must not know: the schema; a test holds that every address exists in it.
"""

from typing import Any, NamedTuple


class OldAlgorithm(NamedTuple):
    """An algorithm of RLlib."""

    name: str
    """The algorithm in rlrun."""
    kind: str
    """Key of `DEFAULTS`."""


ALGORITHMS: dict[str, OldAlgorithm] = {
    "PG": OldAlgorithm("PG", "PG"),
    "A2C": OldAlgorithm("A2C", "A2C"),
    "A3C": OldAlgorithm("A3C", "A3C"),
    "PPO": OldAlgorithm("PPO", "PPO"),
    "APPO": OldAlgorithm("APPO", "APPO"),
    "IMPALA": OldAlgorithm("IMPALA", "IMPALA"),
    "DQN": OldAlgorithm("DQN", "DQN"),
    "SimpleQ": OldAlgorithm("DQN", "SimpleQ"),
    "APEX": OldAlgorithm("DQN", "APEX"),
    "APEX_DQN": OldAlgorithm("DQN", "APEX"),
    "R2D2": OldAlgorithm("DQN", "R2D2"),
    "SAC": OldAlgorithm("SAC", "SAC"),
}
"""Value of `run` -> the algorithm."""

NOT_HERE: dict[str, str] = {
    **dict.fromkeys(
        ("DDPPO", "DD-PPO"),
        "write run: PPO; learners.num_learners sets how many learners share a minibatch",
    ),
    **dict.fromkeys(
        ("BC", "MARWIL", "CQL", "CRR", "DT"),
        "rlrun learns from environments, not from recorded data",
    ),
    **dict.fromkeys(("DDPG", "TD3", "APEX_DDPG", "TQC"), "use SAC for continuous actions"),
    **dict.fromkeys(("ES", "ARS"), "use a gradient-based algorithm, such as PPO"),
    **dict.fromkeys(
        ("QMIX", "MADDPG"), "the section multi_agent can give each agent its own policy"
    ),
    **dict.fromkeys(
        (
            *("MAML", "MBMPO", "Dreamer", "DreamerV3", "AlphaZero", "AlphaStar", "SlateQ"),
            *("BanditLinUCB", "BanditLinTS", "RandomAgent", "IQL"),
        ),
        "`rlrun list algorithms` lists the algorithms",
    ),
}
"""Value of `run` that is not translated -> what to do instead."""

_ON_POLICY: dict[str, Any] = {
    "model.hidden": [256, 256],
    "model.activation": "tanh",
    "model.free_log_std": False,
    "model.share_layers": True,
    "training.gamma": 0.99,
    "training.grad_clip": None,
    "training.adam_epsilon": 1e-8,
}
_A3C: dict[str, Any] = {
    **_ON_POLICY,
    "env_runners.num_env_runners": 2,
    "env_runners.rollout_fragment_length": 10,
    "training.lr": 1e-4,
    "training.lambda_": 1.0,
    "training.vf_loss_coeff": 0.5,
    "training.entropy_coeff": 0.01,
    "training.grad_clip": 40.0,
}
_IMPALA: dict[str, Any] = {
    **_A3C,
    "env_runners.rollout_fragment_length": 50,
    "training.train_batch_size": 500,
    "training.lr": 5e-4,
}
_DQN: dict[str, Any] = {
    "model.hidden": [256, 256],
    "model.activation": "tanh",
    "training.gamma": 0.99,
    "training.lr": 5e-4,
    "training.adam_epsilon": 1e-8,
    "training.grad_clip": 40.0,
    "training.train_batch_size": 32,
    "training.n_step": 1,
    "training.num_steps_sampled_before_learning_starts": 1000,
    "training.target_network_update_freq": 500,
    "report.min_sample_timesteps_per_iteration": 1000,
    "exploration_config.type": "EpsilonGreedy",
    "exploration_config.initial_epsilon": 1.0,
    "exploration_config.final_epsilon": 0.02,
    "exploration_config.warmup_timesteps": 0,
    "exploration_config.epsilon_timesteps": 10_000,
    "replay_buffer_config.type": "MultiAgentPrioritizedReplayBuffer",
    "replay.capacity": 50_000,
    "replay.alpha": 0.6,
    "replay.beta": 0.4,
    "replay.epsilon": 1e-6,
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "PG": {**_ON_POLICY, "training.lr": 4e-4, "training.train_batch_size": 200},
    "A2C": {
        **_A3C,
        "env_runners.rollout_fragment_length": "auto",
        "training.train_batch_size": 32,
    },
    "A3C": {**_A3C, "training.train_batch_size": 1000},
    "PPO": {
        **_ON_POLICY,
        "model.share_layers": False,
        "env_runners.num_env_runners": 2,
        "training.train_batch_size": 4000,
        "training.lr": 5e-5,
        "training.lambda_": 1.0,
        "training.num_epochs": 30,
        "training.minibatch_size": 128,
        "training.clip_param": 0.3,
        "training.vf_loss_coeff": 1.0,
        "training.vf_clip_param": 10.0,
        "training.entropy_coeff": 0.0,
        "training.kl_coeff": 0.2,
        "training.kl_target": 0.01,
        "use_kl_loss": True,  # of later releases
    },
    "IMPALA": _IMPALA,
    "APPO": {
        **_IMPALA,
        "training.num_epochs": 1,
        "training.clip_param": 0.4,
        "training.kl_coeff": 1.0,
        "training.kl_target": 0.01,
        "use_kl_loss": False,
    },
    "DQN": {**_DQN, "training.hiddens": [256]},
    "SimpleQ": {
        **_DQN,
        "training.hiddens": [],
        "training.double_q": False,
        "training.dueling": False,
        "env_runners.rollout_fragment_length": 4,
        "replay_buffer_config.type": "MultiAgentReplayBuffer",
    },
    "APEX": {
        **_DQN,
        "training.hiddens": [256],
        "env_runners.num_env_runners": 32,
        "env_runners.rollout_fragment_length": 50,
        "training.n_step": 3,
        "training.train_batch_size": 512,
        "training.training_intensity": 1,
        "training.num_steps_sampled_before_learning_starts": 50_000,
        "training.target_network_update_freq": 500_000,
        "report.min_sample_timesteps_per_iteration": 25_000,
        "exploration_config.type": "PerWorkerEpsilonGreedy",
        "replay.capacity": 2_000_000,
    },
    "R2D2": {
        **_DQN,
        "training.hiddens": [256],
        "model.max_seq_len": 20,
        "env_runners.num_env_runners": 2,
        "training.gamma": 0.997,
        "training.lr": 1e-4,
        "training.adam_epsilon": 1e-3,
        "training.train_batch_size": 1000,
        "training.training_intensity": 150,
        "training.target_network_update_freq": 1000,
        "training.value_rescaling": True,
        "replay_buffer_config.type": "MultiAgentReplayBuffer",
        "replay.capacity": 100_000,
        "replay.burn_in": 0,
    },
    "SAC": {
        "model.hidden": [256, 256],
        "model.activation": "relu",
        "training.gamma": 0.99,
        "training.lr": 3e-4,
        "training.critic_lr": 3e-4,
        "training.alpha_lr": 3e-4,
        "training.train_batch_size": 256,
        "training.tau": 5e-3,
        "training.n_step": 1,
        "training.num_steps_sampled_before_learning_starts": 1500,
        "training.target_network_update_freq": 0,
        "report.min_sample_timesteps_per_iteration": 100,
        "replay_buffer_config.type": "MultiAgentPrioritizedReplayBuffer",
        "replay.capacity": 1_000_000,
        "replay.alpha": 0.6,
        "replay.beta": 0.4,
        "replay.epsilon": 1e-6,
    },
}
"""RLlib's defaults that differ from rlrun's, with the names of `ADDRESSES` and RLlib's meaning."""

ADDRESSES: dict[str, str] = {
    "Q_model.fcnet_hiddens": "model.value_hidden",
    "Q_model.fcnet_activation": "model.activation",
    "Q_model.hidden_layer_sizes": "model.value_hidden",
    "Q_model.hidden_activation": "model.activation",
    "policy_model.fcnet_hiddens": "model.hidden",
    "policy_model.hidden_layer_sizes": "model.hidden",
    "policy_model.hidden_activation": "model.activation",
    "policy_model.fcnet_activation": "model.activation",
    "buffer_size": "replay.capacity",
    "learning_starts": "training.num_steps_sampled_before_learning_starts",
    "prioritized_replay_alpha": "replay.alpha",
    "prioritized_replay_beta": "replay.beta",
    "prioritized_replay_eps": "replay.epsilon",
    "burn_in": "replay.burn_in",
    "use_h_function": "training.value_rescaling",
    "store_buffer_in_checkpoints": "replay.store_in_checkpoints",
    "grad_norm_clipping": "training.grad_clip",
    "optimization.actor_learning_rate": "training.lr",
    "optimization.critic_learning_rate": "training.critic_lr",
    "optimization.entropy_learning_rate": "training.alpha_lr",
    "replay_buffer_config.capacity": "replay.capacity",
    "replay_buffer_config.learning_starts": ("training.num_steps_sampled_before_learning_starts"),
    "replay_buffer_config.min_size_for_sampling": (
        "training.num_steps_sampled_before_learning_starts"
    ),
    "replay_buffer_config.prioritized_replay_alpha": "replay.alpha",
    "replay_buffer_config.prioritized_replay_beta": "replay.beta",
    "replay_buffer_config.prioritized_replay_eps": "replay.epsilon",
    "replay_buffer_config.alpha": "replay.alpha",
    "replay_buffer_config.beta": "replay.beta",
    "replay_buffer_config.replay_burn_in": "replay.burn_in",
    "replay_buffer_config.replay_mode": "replay.mode",
    "exploration_config.random_timesteps": "exploration.random_steps",
    "exploration_config.temperature": "exploration.temperature",
    "exploration_config.stddev": "exploration.stddev",
    "exploration_config.initial_stddev": "exploration.initial_stddev",
    "exploration_config.ou_theta": "exploration.theta",
    "multiagent.policies_to_train": "multi_agent.policies_to_train",
    "multiagent.count_steps_by": "multi_agent.count_steps_by",
    "multiagent.replay_mode": "replay.mode",
    "entropy_coeff_schedule": "training.entropy_coeff",
    "target_network_update_freq": "training.target_network_update_freq",
    "opt_type": "training.optimizer",
    "decay": "training.rmsprop_decay",
    "epsilon": "training.rmsprop_epsilon",
    "_train_batch_size_per_learner": "training.train_batch_size",
    "DQN.epsilon": "exploration.epsilon",
    "DQN.model.head_fcnet_hiddens": "training.hiddens",
    "evaluation_config.explore": "evaluation.explore",
    "evaluation_config.seed": "evaluation.seed",
    "evaluation_config.num_workers": "evaluation.num_env_runners",
    "evaluation_config.num_envs_per_worker": "evaluation.num_envs",
    "evaluation_config.num_envs_per_env_runner": "evaluation.num_envs",
}
"""Key of RLlib's `config`, or ALGORITHM.KEY -> its name in `DEFAULTS`. If the meaning differs too,
the rules of the algorithm (rllib_rules.py) convert the value. Other keys are found by
retired.yaml, or by their own name."""

SPELLINGS: dict[str, str] = {
    "q_model_config": "Q_model",
    "policy_model_config": "policy_model",
    "optimization_config": "optimization",
    "multi_agent": "multiagent",
    "_model_config": "model",
}
"""Name of a mapping in older or newer releases -> its name in `ADDRESSES`."""

OF_ALL_NETWORKS = ("model", "_model_config")
"""Mappings that apply to all networks of an algorithm."""

MAPPINGS = (
    *("model", "Q_model", "policy_model", "optimization", "exploration_config"),
    *("replay_buffer_config", "multiagent", "evaluation_config"),
)
"""Keys of `config` whose values are mappings."""

KEPT = (
    *("use_kl_loss", "vtrace", "num_gpus", "env_config", "minibatch_buffer_size"),
    *("prioritized_replay", "replay_buffer_config.type", "final_prioritized_replay_beta"),
    *("prioritized_replay_beta_annealing_timesteps", "evaluation_duration_unit"),
    *("exploration_config.type", "exploration_config.initial_epsilon"),
    *("exploration_config.final_epsilon", "exploration_config.warmup_timesteps"),
    *("exploration_config.epsilon_timesteps", "exploration_config.ou_sigma"),
    *("exploration_config.ou_base_scale", "exploration_config.initial_scale"),
    *("exploration_config.final_scale", "exploration_config.scale_timesteps"),
    "exploration_config.sub_exploration",
    *("multiagent.policies", "multiagent.policy_mapping_fn", "evaluation_config.env_config"),
)
"""Keys of `config` that are translated by rules."""

ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_gae": ((True,), "advantages are always estimated by GAE; lambda: 1 gives plain returns"),
    "use_critic": ((True,), "the value function is always trained"),
    "replay_proportion": ((0,), "batches are not replayed; APPO's circular_buffer_* reuses them"),
    "replay_ratio": ((0,), "batches are not replayed; APPO's circular_buffer_* reuses them"),
    "momentum": ((0,), "rlrun's RMSProp has no momentum"),
    "twin_q": ((True,), "there are always two critics"),
    "input": (("sampler",), "rlrun learns from environments, not from recorded data"),
    "output": ((None,), "`rlrun rollout --save FILE` records transitions"),
    "_separate_vf_optimizer": ((False,), "one optimizer trains policy and value function"),
    "sample_async": (
        (True, False),
        "IMPALA, APPO and A3C sample while they learn, the others in turns",
    ),
    "custom_model": ((None,), "write the network as an RLModule, and name it in model.use"),
    "model.custom_model": ((None,), "write the network as an RLModule, and name it in model.use"),
    "model.conv_activation": (("relu",), "convolutions have relu"),
    "model.head_fcnet_activation": (("relu",), "layers of training.hiddens have relu"),
    "model.head_fcnet_hiddens": (([],), "heads are linear layers, except DQN's"),
    "model.fcnet_use_layernorm": ((False,), "layers are not normalised"),
    "model.head_fcnet_use_layernorm": ((False,), "layers are not normalised"),
    "model.fusionnet_hiddens": (([256, 256],), "nested observations are flattened"),
    "model.fusionnet_activation": (("tanh",), "nested observations are flattened"),
    "model.log_std_clip_param": ((20.0,), "rlrun bounds standard deviations in another way"),
    "model.custom_action_dist": ((None,), "name the distribution in model.distribution"),
    "model.custom_preprocessor": ((None,), "write it as an env_runners.env_to_module_connector"),
    "model.no_final_linear": ((False,), "networks end in a linear layer"),
    "model.post_fcnet_hiddens": (([],), "append these layers to fcnet_hiddens"),
    "model.lstm_use_prev_action_reward": (
        (False,),
        "use lstm_use_prev_action and lstm_use_prev_reward",
    ),
    "replay_buffer_config.storage_unit": (
        ("timesteps", "sequences"),
        "transitions are stored, and with a memory sequences",
    ),
    "td_error_loss_fn": (("huber",), "the loss of temporal-difference errors is Huber's"),
    "callbacks": ((None, {}), "write `callbacks` in rlrun's form, a list of classes"),
    "before_learn_on_batch": ((None,), "use training.learner_connectors"),
}
"""Key -> the values that need no translation, and why others are refused."""

EXPLORATIONS = (
    *("EpsilonGreedy", "PerWorkerEpsilonGreedy", "SoftQ", "Random", "StochasticSampling"),
    *("GaussianNoise", "OrnsteinUhlenbeckNoise", "ParameterNoise"),
)
"""Values of `exploration_config.type` that are translated."""

NOISE_DEFAULTS: dict[str, Any] = {
    "initial_scale": 1.0,
    "final_scale": 0.02,
    "scale_timesteps": 10_000,
    "ou_base_scale": 0.1,
    "ou_sigma": 0.2,
}
"""RLlib's defaults for noise that is added to actions, in the order that the rule reads them in."""

ENVS: dict[str, str] = {
    "RepeatAfterMeEnv": "RepeatAfterMe",
    "StatelessCartPole": "StatelessCartPole",
    "MultiAgentCartPole": "MultiAgentCartPole",
    "MultiAgentCartPoleCrashing": "CrashingCartPole",
    "RockPaperScissors": "RockPaperScissors",
    "TransformedActionPendulum": "StretchedPendulum",
}
"""Class of RLlib's examples -> rlrun's environment."""

SEVERAL_AGENTS = ("MultiAgentCartPole", "CrashingCartPole", "RockPaperScissors")
"""The environments of `ENVS` with several agents."""

ENV_ARGUMENTS: dict[str, str | None] = {
    "repeat_delay": "delay",
    "episode_len": "length",
    "p_crash": "crash_probability",
    "p_crash_reset": None,
    "init_time_s": None,
    "init_time_s_min": None,
    "init_time_s_max": None,
    **dict.fromkeys(
        (
            *("crash_after_n_steps", "crash_on_worker_indices", "skip_env_checking", "p_stall"),
            *("p_stall_reset", "stall_time_sec", "stall_on_worker_indices"),
        ),
    ),
}
"""Argument of these classes -> its name in rlrun; None has no counterpart."""

ENV_IDS: dict[str, str] = {
    "Pendulum-v0": "Pendulum-v1",
    "FrozenLake-v0": "FrozenLake-v1",
    "LunarLander-v2": "LunarLander-v3",
    "LunarLanderContinuous-v2": "LunarLanderContinuous-v3",
    "BipedalWalker-v2": "BipedalWalker-v3",
    **{
        f"{name}-v{version}": f"{name}-v5"
        for name in (
            *("Ant", "HalfCheetah", "Hopper", "Humanoid", "InvertedPendulum", "Reacher"),
            *("InvertedDoublePendulum", "Swimmer", "Walker2d"),
        )
        for version in (1, 2, 3)
    },
}
"""Id that gymnasium no longer has, or cannot make -> the id to use."""

WITHOUT_COUNTERPART: dict[str, str] = {
    "local_dir": "runs are written below runs/; --run-dir names another folder",
    "storage_path": "runs are written below runs/; --run-dir names another folder",
    "max_failures": "`rlrun train --resume RUN` continues a run that failed",
    "pass_criteria": "it is for RLlib's own tests",
    "trial_resources": "resources follow from env_runners and learners",
    "resources_per_trial": "resources follow from env_runners and learners",
    "upload_dir": "runs are written to this machine",
    "sync_config": "runs are written to this machine",
    "resume": "`rlrun train --resume RUN` continues a run",
    "verbose": "the console shows each iteration; --quiet shows only the outcome",
}
"""Key beside `config` -> why it has no counterpart."""
