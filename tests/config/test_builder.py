"""The fluent builder: the same schema, in Python."""

import numpy as np
import pytest
from fake_algorithm import Callback, Fake, FakeConfig, Maze

from rlrun import PPO, PPOConfig
from rlrun.config.builder import NotProvided, given_experiment
from rlrun.config.loader import load, load_experiment
from rlrun.config.problems import ConfigError
from rlrun.config.registry import import_object


def base():
    return FakeConfig().environment("CartPole-v1").debugging(name="exp")


def test_equals_the_file(write):
    text = """
seed: 3
env_runners: {num_env_runners: 2, rollout_fragment_length: 32}
model: {hidden: [32], activation: relu}
training: {lr: 1e-3, clip: [[0, 1], [100, 0]]}
learners: {device: cpu}
connectors: {clip_actions: true}
callbacks: [{use: 'fake_algorithm:Callback', every: 2}, 'fake_algorithm:Callback']
evaluation: {interval: 2}
fault_tolerance: {restart_failed_env_runners: false}
checkpoint: {every: 1}
report: {smoothing_episodes: 5}
"""
    built = (
        base()
        .debugging(seed=3)
        .stop({"env_steps": 100_000})
        .env_runners(num_env_runners=2, rollout_fragment_length=32)
        .model(hidden=[32], activation="relu")
        .training(lr=1e-3, clip=[[0, 1], [100, 0]])
        .resources(device="cpu")
        .connectors(clip_actions=True)
        .callbacks({"use": "fake_algorithm:Callback", "every": 2}, Callback)
        .evaluation(interval=2)
        .fault_tolerance(restart_failed_env_runners=False)
        .checkpointing(every=1)
        .reporting(smoothing_episodes=5)
    )
    assert built.experiment() == load_experiment(write(text))


def test_every_method_returns_the_builder():
    config = FakeConfig()
    for method in ("environment", "env_runners", "training", "resources", "learners", "model"):
        assert getattr(config, method)() is config
    for method in ("evaluation", "fault_tolerance", "checkpointing", "reporting", "connectors"):
        assert getattr(config, method)() is config
    assert config.callbacks() is config.debugging() is config.stop() is config


@pytest.mark.parametrize("method", ["env_runners", "training", "evaluation", "debugging"])
def test_arguments_are_keyword_only(method):
    with pytest.raises(TypeError):
        getattr(FakeConfig(), method)(3)


def test_not_provided_leaves_alone_and_none_is_a_value():
    config = base().training(grad_clip=0.5, num_epochs=2).training(grad_clip=NotProvided)
    assert config.experiment().training.grad_clip == 0.5
    config.training(grad_clip=None)
    experiment = config.experiment()
    assert experiment.training.grad_clip is None
    assert experiment.training.num_epochs == 2


def test_env_by_class_name_and_arguments():
    by_class = FakeConfig().environment(Maze, size=3).experiment().env
    by_path = FakeConfig().environment("fake_algorithm:Maze", env_config={"size": 3})
    assert by_class == by_path.experiment().env
    assert by_class.use == "fake_algorithm:Maze"


def test_arguments_stay_with_their_environment_and_go_with_another():
    config = FakeConfig().environment(env_config={"size": 3}).environment(Maze)
    assert config.environment(Maze, walls=1).experiment().env.kwargs == {"size": 3, "walls": 1}
    assert config.environment("CartPole-v1").experiment().env.kwargs == {}


def test_sets_of_policies_are_lists_in_the_order_of_their_names():
    named = {"policies": {"b", "a", "c"}, "policies_to_train": {"c", "b"}}
    section = FakeConfig().multi_agent(**named).to_dict()["multi_agent"]
    assert section == {"policies": ["a", "b", "c"], "policies_to_train": ["b", "c"]}


@pytest.mark.parametrize("name", ["normalize_actions", "clip_actions", "clip_rewards"])
def test_settings_that_were_arguments_of_environment_are_no_arguments_of_the_env(name):
    with pytest.raises(ConfigError, match=rf"env\.{name}: .* did you mean connectors\.{name}\?"):
        FakeConfig().environment(Maze, **{name: True})
    with pytest.raises(ConfigError, match=r"did you mean env_runners\.disable_env_checking\?"):
        FakeConfig().environment(disable_env_checking=True)
    given = FakeConfig().environment(Maze, env_config={name: True})
    assert given.to_dict()["env"][name] is True


def test_an_argument_that_no_file_can_hold_is_refused_before_training():
    with pytest.raises(ConfigError, match=r"^FakeConfig: env.size: expected what a file can hold"):
        FakeConfig().environment(Maze, size={1, 2}).experiment()
    built = FakeConfig().environment(Maze, size=np.int64(3)).experiment()
    assert type(built.env.kwargs["size"]) is int


@pytest.mark.parametrize("key", ["algorithm", "run"])
def test_a_builder_takes_no_other_algorithm(key):
    with pytest.raises(ConfigError, match="algorithm: this is a builder of PPO, not of DQN"):
        PPOConfig({key: "DQN"})
    assert PPOConfig({key: "PPO"}).to_dict() == {"algorithm": "PPO"}


@pytest.mark.parametrize("schedule", [None, [[0, 1e-3], [9, 0]]])
def test_a_schedule_goes_before_the_number_beside_it(schedule):
    for config in ({"lr_schedule": schedule, "lr": 0.1}, {"lr": 0.1, "lr_schedule": schedule}):
        assert FakeConfig(config).to_dict()["training"] == {"lr": schedule or 0.1}


class Main:
    """Stands for a class of the main program, which no other process can import."""


Main.__module__ = "__main__"


@pytest.mark.parametrize(
    ("configure", "key"),
    [
        (lambda code: FakeConfig().environment(code), "env.use"),
        (lambda code: base().env_runners(env_runner_cls=code), "env_runners.env_runner_cls"),
        (lambda code: base().env_runners(sample_collector=code), "env_runners.sample_collector"),
        (lambda code: base().model(use=code), "model.use"),
        (lambda code: base().training(loss=code), "training.loss"),
        (lambda code: base().callbacks({"use": code}), "callbacks.0.use"),
        (lambda code: base().multi_agent(agents=code), "multi_agent.agents"),
        (lambda code: base().multi_agent(policies={"a": code}), "multi_agent.policies.a.use"),
        (lambda code: base().evaluation(env=code), "evaluation.env.use"),
    ],
)
def test_classes_and_functions_stand_for_their_names(configure, key):
    def found(code):
        value = configure(code).to_dict()
        for part in key.split("."):
            value = value[int(part) if part.isdigit() else part]
        return value

    assert found(Maze) == "fake_algorithm:Maze"
    for code in (Main, lambda config: None, lambda: None):
        name = found(code)
        assert name.startswith("__main__:")
        assert import_object(name) is code
        assert found(code) == name


def test_code_of_another_program_is_named_and_arguments_are_left_alone(write):
    text = "algorithm: PPO\nenv: CartPole-v1\nenv_runners: {sample_collector: '__main__:gone'}"
    with pytest.raises(ConfigError, match=r"3:15: .*__main__:gone is code of another Python"):
        load_experiment(write(text, minimal=False))
    assert FakeConfig().environment("X", make=Maze).to_dict()["env"]["make"] is Maze


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: FakeConfig().framework("torch"), AttributeError, "PyTorch only"),
        (lambda: FakeConfig().rollouts(), AttributeError, r"use env_runners\(\)"),
        (lambda: FakeConfig().enviroment("x"), AttributeError, "did you mean environment"),
        (lambda: FakeConfig().resources(num_gpus=1), ConfigError, "learners.device"),
        (lambda: PPO(env="X", config={}), TypeError, r"write PPOConfig\(config, env=env\).build"),
        (lambda: PPO({"lr": 1}), TypeError, r"write PPOConfig\(config, env=env\).build"),
    ],
)
def test_old_names_are_answered_with_what_to_write_now(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("env_runners", {"num_env_runner": 1}, "did you mean num_env_runners?"),
        ("env_runners", {"num_rollout_workers": 1}, "use env_runners.num_env_runners"),
        ("training", {"hidden": [1]}, "it belongs to model"),
        ("training", {"num_epoch": 1}, "did you mean num_epochs?"),
    ],
)
def test_a_wrong_key_raises_at_once(method, settings, message):
    with pytest.raises(ConfigError) as caught:
        getattr(FakeConfig(), method)(**settings)
    assert caught.value.render().startswith(f"FakeConfig: {method}.{next(iter(settings))}: ")
    assert message in caught.value.render()


def test_wrong_values_name_section_and_key():
    config = base().training(gamma="x").env_runners(num_env_runners=True)
    with pytest.raises(ConfigError) as caught:
        config.experiment()
    lines = caught.value.render().splitlines()
    assert [line.partition(": expected")[0] for line in lines] == [
        "FakeConfig: training.gamma",
        "FakeConfig: env_runners.num_env_runners",
    ]


def test_build_freezes_and_copies():
    hidden, env = [8], {"use": "fake_algorithm:Maze", "size": [1]}
    config = FakeConfig().environment(env).model(hidden=hidden)
    algorithm = config.build()
    assert isinstance(algorithm, Fake)
    hidden.append(9)
    env["size"].append(2)  # type: ignore[attr-defined]
    assert algorithm.config.model.hidden == (8,)
    assert algorithm.config.env.kwargs == {"size": [1]}
    for write in (
        lambda: config.training(lr=1),
        lambda: config.environment("CartPole-v1"),
        lambda: config.stop(env_steps=1),
        lambda: config.callbacks(Callback),
        lambda: config.debugging(seed=1),
    ):
        with pytest.raises(AttributeError, match="frozen"):
            write()
    assert config.copy().training(lr=1.0).experiment().training.lr == 1.0


def test_settings_are_not_attributes():
    with pytest.raises(AttributeError, match="its methods take the settings"):
        FakeConfig().lr = 3


def test_plain_dict_with_rllib_keys_equals_the_builder():
    flat = {
        "framework": "torch",
        "num_workers": 2,
        "num_envs_per_worker": 4,
        "create_env_on_driver": True,
        "lambda": 0.9,
        "lr": 1e-3,
        "explore": False,
        "seed": 3,
        "env_config": {"max_episode_steps": 9},
        "model": {"fcnet_hiddens": [8], "vf_share_layers": True},
        "callbacks": Callback,
        "evaluation": {"interval": 2},
        "stop": {"env_steps": 5},
    }
    built = (
        FakeConfig()
        .environment("CartPole-v1", max_episode_steps=9)
        .env_runners(num_env_runners=2, num_envs_per_env_runner=4)
        .env_runners(create_env_on_local_worker=True, explore=False)
        .training(lambda_=0.9, lr=1e-3)
        .debugging(seed=3)
        .model(hidden=[8], share_layers=True)
        .callbacks("fake_algorithm:Callback")
        .evaluation(interval=2)
        .stop(env_steps=5)
    )
    assert FakeConfig(flat, env="CartPole-v1").experiment() == built.experiment()
    assert FakeConfig(config={"env": "CartPole-v1"}).experiment().env.use == "CartPole-v1"


def test_the_custom_model_config_holds_the_models_arguments():
    flat = {"custom_model": "nets:Wide", "custom_model_config": {"width": 3}, "max_seq_len": 5}
    built = FakeConfig().model(use="nets:Wide", width=3, max_seq_len=5)
    assert FakeConfig({"model": flat}).to_dict() == built.to_dict()
    with pytest.raises(ConfigError, match=r"model.width: unknown key"):
        FakeConfig({"model": {"custom_model_config": {"width": 3}}})


def test_unknown_flat_keys_are_all_named():
    with pytest.raises(ConfigError) as caught:
        FakeConfig({"use_gae": True, "sead": 1})
    lines = caught.value.render().splitlines()
    assert lines[0].startswith("FakeConfig: use_gae: retired; ")
    assert lines[1] == "FakeConfig: sead: unknown top-level key - did you mean seed?"


FILE = "algorithm: PPO\nenv: CartPole-v1\ntraining: {lr: 1e-3}\nstop: {env_steps: 1}\n"
KEYS = {
    "algorithm": "PPO",
    "env": "CartPole-v1",
    "training": {"lr": 1e-3},
    "stop": {"env_steps": 1},
}


def test_a_file_a_dict_a_builder_and_an_experiment_are_the_same(tmp_path):
    path = tmp_path / "ppo_cartpole-v1.yaml"
    path.write_text(FILE)
    builder = PPOConfig().environment("CartPole-v1").training(lr=1e-3).stop(env_steps=1)
    forms = [path, str(path), KEYS, builder, builder.experiment(), load(path)]
    experiments = [given_experiment(form)[0].model_copy(update={"name": "x"}) for form in forms]
    assert all(experiment == experiments[0] for experiment in experiments)
    changed, loaded = given_experiment(KEYS, ["training.lr=0.5"])
    assert changed.training.lr == 0.5
    assert loaded is not None


@pytest.mark.parametrize("env", ["CartPole-v1", "MultiAgentCartPole"])
def test_a_builder_takes_its_own_dict(env):
    arguments = {"max_episode_steps": 7} if env == "CartPole-v1" else {"num_agents": 3}
    settings = PPOConfig().environment(env, **arguments).model(hidden=[8]).to_dict()
    assert PPOConfig(settings).to_dict() == settings


def test_another_form_is_refused_in_one_line():
    with pytest.raises(TypeError, match=r"a builder such as PPOConfig.*, not list"):
        given_experiment(["algorithm: PPO"])
    with pytest.raises(TypeError, match="not to a finished experiment"):
        given_experiment(PPOConfig().environment("CartPole-v1"), ["seed=1"])
    with pytest.raises(ConfigError, match=r"^dict: training.lrr: .* did you mean lr"):
        given_experiment({**KEYS, "training": {"lrr": 1}})
