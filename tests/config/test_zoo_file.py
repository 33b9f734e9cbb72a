"""Files of rl-baselines3-zoo: each key is translated, refused, or listed as without effect."""

from pathlib import Path

import pytest

from rlrun.config.dump import to_plain
from rlrun.config.loader import load
from rlrun.config.problems import ConfigError
from rlrun.config.yaml_tree import parse_yaml

EXAMPLES = Path(__file__).with_name("zoo_examples.yaml")
TREE = parse_yaml(EXAMPLES.read_text(), "examples")

# Algorithm and environment -> what the settings mean here, by address.
MEANINGS = {
    ("PPO", "CartPole-v1"): {
        "stop.env_steps": 100_000,
        "env_runners.num_envs_per_env_runner": 8,
        "model.hidden": [64, 64],
        "model.activation": "tanh",
        "training.train_batch_size": 256,
        "training.minibatch_size": 256,
        "training.lr": [[0, 0.001], [100_000, 0.0]],
        "training.clip_param": [[0, 0.2], [100_000, 0.0]],
        "training.vf_loss_coeff": 1.0,
        "training.normalize_advantages": "minibatch",
        "training.adam_epsilon": 1e-5,
    },
    ("PPO", "Pendulum-v1"): {
        "training.lambda_": 0.8,
        "model.hidden": [256, 256],
        "model.activation": "relu",
        "model.log_std_init": -2.0,
        "model.init": "uniform",
        "model.use_sde": False,
        "env_runners.observation_filter": "MeanStdFilter",
        "connectors.normalize_rewards": False,
        "env_runners.env_wrappers": [
            "TimeAwareObservation",
            {"use": "FrameStackObservation", "stack_size": 2},
        ],
    },
    ("A2C", "CartPole-v1"): {
        "training.train_batch_size": 40,
        "training.lambda_": 1.0,
        "training.lr": 7e-4,
        "training.entropy_coeff": 0.0,
        "training.optimizer": "rmsprop",
        "training.rmsprop_epsilon": 1e-10,
        "training.rmsprop_start": 0.0,
        "model.init": "orthogonal",
    },
    ("A2C", "Acrobot-v1"): {
        "connectors.normalize_rewards": True,
        "env_runners.gym_env_vectorize_mode": "async",
        "training.vf_loss_coeff": 0.5,
        "training.rmsprop_epsilon": 1e-5,
        "training.rmsprop_start": 1.0,
    },
    ("A2C", "Pendulum-v1"): {
        "model.use_sde": True,
        "model.sde_sample_freq": 8,
        "model.log_std_init": -2.0,
        "model.init": "uniform",
    },
    ("DQN", "CartPole-v1"): {
        "model.hidden": [256, 256],
        "model.activation": "relu",
        "env_runners.rollout_fragment_length": 256,
        "training.training_intensity": 32.0,
        "training.minibatch_size": 64,
        "training.target_network_update_freq": 10,
        "training.double_q": False,
        "training.dueling": False,
        "exploration.epsilon": [[0, 1.0], [8000, 0.04]],
        "exploration.random_steps": 1000,
        "replay.capacity": 100_000,
    },
    ("SAC", "Pendulum-v1"): {
        "training.training_intensity": 256.0,
        "model.init": "uniform",
        "training.initial_alpha": 1.0,
        "training.num_steps_sampled_before_learning_starts": 100,
    },
    ("SAC", "MountainCarContinuous-v0"): {
        "model.hidden": [64, 64],
        "training.training_intensity": 512.0,
        "training.initial_alpha": 0.1,
        "training.alpha_lr": 0.0,
        "training.tau": 0.01,
        "model.use_sde": True,
        "model.sde_sample_freq": 32,
        "model.log_std_init": -3.67,
        "exploration.random_steps": 0,
    },
}


@pytest.fixture
def written(tmp_path):
    """Write settings as the zoo's file of an algorithm."""

    def write(text, algorithm="ppo"):
        path = tmp_path / f"{algorithm}.yml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(("algorithm", "env"), MEANINGS)
def test_settings_mean_what_they_meant(algorithm, env, written):
    text = EXAMPLES.read_text().partition(f"\n{algorithm}:\n")[2]
    lines = []
    for line in text.splitlines():
        if not line.startswith("  "):
            break
        lines.append(line[2:])
    loaded = load(written("\n".join(lines), algorithm.lower()), [f"name={env}"])
    assert (loaded.experiment.algorithm, loaded.experiment.env.use) == (algorithm, env)
    plain = to_plain(loaded.experiment)
    found = {}
    for address in MEANINGS[algorithm, env]:
        section, _, field = address.partition(".")
        found[address] = plain[section][field]
    assert found == MEANINGS[algorithm, env]


def test_keys_of_state_dependent_exploration_have_no_effect_without_it(written):
    keys = ("use_sde", "sde_sample_freq", "use_expln", "use_sde_at_warmup", "log_std_init")
    settings = ", ".join(f"{key}: false" for key in keys)
    loaded = load(written(f"Pendulum-v1: {{n_timesteps: 1e5, {settings}}}", "sac"))
    assert loaded.warnings[0].message.endswith(f"; without effect: {', '.join(keys)}")


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "sac"])
def test_state_dependent_exploration(written, algorithm):
    unlike = ", use_sde_at_warmup: false, clip_mean: 2.0" if algorithm == "sac" else ""
    settings = f"n_steps: 16, use_sde: true, use_expln: true, full_std: true{unlike}"
    loaded = load(written(f"Pendulum-v1: {{n_timesteps: 1e5, {settings}}}", algorithm))
    experiment = loaded.experiment
    steps, log_std, unused = 16, 0.0, ["use_expln"]
    if algorithm == "sac":  # n_steps are those of its returns
        steps, log_std, unused = 1, -3.0, ["use_expln", "clip_mean"]
        assert experiment.exploration.random_steps == 100
    assert (experiment.model.sde_sample_freq, experiment.model.log_std_init) == (steps, log_std)
    assert loaded.warnings[0].message.endswith(f"; without effect: {', '.join(unused)}")
    other = load(written(f"Pendulum-v1: {{n_timesteps: 1e5, {settings}, sde_sample_freq: 4}}",
                         algorithm))  # fmt: skip
    assert other.experiment.model.sde_sample_freq == 4


def test_the_examples_are_all_there_is_to_check():
    assert {(kind, env) for kind, node in TREE.value.items() for env in node.value} == set(MEANINGS)


SHARED = {"share_layers": True, "hidden": (7,), "head_hidden": (8,)}


@pytest.mark.parametrize(
    ("algorithm", "net_arch", "settings"),
    [
        ("ppo", "dict(pi=[8], vf=[9, 9])", {"hidden": (8,), "value_hidden": (9, 9)}),
        ("ppo", "[dict(vf=[9])]", {"hidden": (), "value_hidden": (9,)}),
        ("ppo", "dict(pi=[8], vf=[8])", {"hidden": (8,), "value_hidden": None}),
        ("sac", "dict(pi=[8], qf=[9])", {"hidden": (8,), "value_hidden": (9,)}),
        ("ppo", "[7, dict(pi=[8], vf=[9])]", {**SHARED, "value_hidden": (9,)}),
        ("a2c", "[7, dict(pi=[8], vf=[8])]", {**SHARED, "value_hidden": None}),
    ],
)
def test_layers_of_two_networks(written, algorithm, net_arch, settings):
    text = f'Pendulum-v1: {{n_timesteps: 1e5, policy_kwargs: "dict(net_arch={net_arch})"}}'
    model = load(written(text, algorithm)).experiment.model
    assert {name: getattr(model, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("algorithm", "net_arch", "settings"),
    [
        ("ppo", "", {"model.head_hidden": ()}),
        ("ppo", "[8]", {"model.head_hidden": (8,), "model.value_hidden": None}),
        ("ppo", "dict(pi=[8], vf=[])", {"model.head_hidden": (8,), "model.value_hidden": ()}),
        ("dqn", "[8]", {"training.hiddens": (8,)}),
        ("sac", "[8]", {"model.hidden": (8,), "model.head_hidden": ()}),
        ("sac", "", {"model.hidden": (256, 256)}),
    ],
)
def test_layers_behind_convolutions(written, algorithm, net_arch, settings):
    layers = f'policy_kwargs: "dict(net_arch={net_arch})"' if net_arch else ""
    entry = f"{{n_timesteps: 1e5, policy: CnnPolicy, {layers}}}"
    experiment = load(written(f"ALE/Pong-v5: {entry}", algorithm)).experiment
    for address, value in settings.items():
        section, _, key = address.partition(".")
        assert getattr(getattr(experiment, section), key) == value


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("dqn", "net_arch: [8, {pi: [8]}]"),
        ("ppo", "policy: CnnPolicy, net_arch: [8, {pi: [8]}]"),
    ],
)
def test_shared_layers_where_there_are_none(written, algorithm, settings):
    with pytest.raises(ConfigError, match="net_arch: only PPO and A2C share layers"):
        load(written(f"CartPole-v1: {{n_timesteps: 1e5, {settings}}}", algorithm))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("full_std: false", "CartPole-v1.full_std: each weight has a standard deviation"),
        ("vec_env_wrapper: a.b.C", "vec_env_wrapper: vectors of environments have no wrappers"),
        ("n_step: 5", "n_step: PPO of Stable-Baselines3 has no such key - did you mean n_steps?"),
        ("learning_rate: cos_1e-3", "learning_rate: expected a number, or a schedule such as"),
        ("policy: MlpLstmPolicy", "policy: policy and value function would share the LSTM; write"),
        ("policy: mine.Policy", "expected MlpPolicy, CnnPolicy or MultiInputPolicy; name your own"),
        ("policy_kwargs: \"dict(net_arch=open('x').read())\"", "Python code is not run"),
        ("policy_kwargs: dict(net_arch=[-nn])", "Python code is not run"),
        ("policy_kwargs: \"dict(activation_fn=nn.Tan)\"", "did you mean Tanh?"),
        ("n_envs: many", "env_runners.num_envs_per_env_runner: expected a whole number"),
        ("callback: a.b.C", "callback: write callbacks as classes of rlrun"),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_refused_at_its_line(settings, says, written):
    file = written(f"CartPole-v1:\n  n_timesteps: 1e5\n  {settings}\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    (problem,) = caught.value.problems
    assert problem.origin.line == 3
    assert says in problem.render()


def test_settings_are_inherited_from_one_mapping_or_the_first_of_several(written):
    first, second = "a: &a {gamma: 0.5, n_steps: 16}\n", "b: &b {gamma: 0.6, n_timesteps: 1e5}\n"
    file = written(first + second + "CartPole-v1: {<<: [*a, *b], n_steps: 32}\n")
    training = load(file, ["name=CartPole-v1"]).experiment.training
    assert (training.gamma, training.train_batch_size) == (0.5, 32)
    file = written("CartPole-v1: {<<: [1], n_timesteps: 1e5}\n")
    with pytest.raises(ConfigError, match="1:20: <<: expected settings to inherit, or a list"):
        load(file)


@pytest.mark.parametrize(
    ("algorithm", "overrides", "says"),
    [
        (
            "tqc",
            [],
            "only PPO, A2C, DQN, SAC are translated, not TQC; name one, as in algorithm=PPO",
        ),
        ("ppo", [], "choose one, as in name=CartPole-v1"),
        ("ppo", ["name=CartPole"], "there is no environment 'CartPole'"),
        ("ppo", ["name=atari"], "this entry is for all Atari games"),
        ("dqn", ["name=default"], "this entry is for environments without an entry"),
    ],
)
def test_a_file_that_is_not_clear_is_refused(algorithm, overrides, says, written):
    names = "CartPole-v1", "atari", "default"
    entries = "".join(f"{name}: {{n_timesteps: 1e5}}\n" for name in names)
    file = written(entries, algorithm)
    if algorithm == "tqc":
        overrides = ["name=CartPole-v1"]
    with pytest.raises(ConfigError, match=says):
        load(file, overrides)


@pytest.mark.parametrize("game", ["ALE/Pong-v5", "BreakoutNoFrameskip-v4"])
def test_a_game_of_atari_without_an_entry_has_the_settings_of_all(game, written):
    pytest.importorskip("ale_py")
    file = written("atari: {n_timesteps: 1e5, n_epochs: 7}\nALE/Pong-v4: {n_timesteps: 1e5}\n")
    found = load(file, [f"name={game}"]).experiment
    assert (found.env.use, found.training.num_epochs) == (game, 7)
    assert found.name == game.replace("/", "-")


def test_a_target_network_of_dqn_may_follow_slowly(written):
    file = written("CartPole-v1: {n_timesteps: 1e5, tau: 0.01, target_update_interval: 1}", "dqn")
    training = load(file).experiment.training
    assert (training.tau, training.target_network_update_freq) == (0.01, 1)


def test_the_algorithm_of_a_file_with_another_name_is_given(written):
    file = written("CartPole-v1: {n_timesteps: 1e5}\n", "mine")
    assert load(file, ["algorithm=A2C"]).experiment.training.train_batch_size == 5
