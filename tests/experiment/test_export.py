"""Exported policies: same actions as the policy itself, for every kind of space and network."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun import DQNConfig, LearningPolicy, PPOConfig, SACConfig, ViewRequirement, export
from rlrun.algorithms.exported_policy import FORMATS
from rlrun.config.problems import InputError
from rlrun.envs.env import register_env
from rlrun.experiment import export as room
from rlrun.policies.rl_module import ActorCritic

spaces = gym.spaces
MEMORY = {"lstm_cell_size": 6, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}
ATTENTION = {"use_attention": True, "attention_dim": 8, "attention_memory": 3}
LOOKS_BACK = {"attention_use_n_prev_actions": 2, "attention_use_n_prev_rewards": 2}


class Shapes(gym.Env):
    """Spaces alone."""

    def __init__(self, observations, actions):
        self.observation_space, self.action_space = observations, actions

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.observation_space.sample(), 1.0, False, True, {}


BOX = spaces.Box(-np.inf, np.inf, (3,), np.float64)
MANY = spaces.Dict(
    turn=spaces.Box(np.float32([-3, 0]), np.float32([5, 1])),
    grip=spaces.Tuple((spaces.Discrete(3, start=2), spaces.MultiBinary(2))),
    gear=spaces.Box(1, 4, (2,), np.int64),
)
MASKED = spaces.Dict(action_mask=spaces.Box(1, 1, (4,), np.int8), seen=spaces.Box(-1, 1, (3,)))
CAMERA = spaces.Dict(
    camera=spaces.Box(0, 255, (9, 9, 3), np.uint8), seen=BOX, turn=spaces.Tuple((BOX, BOX))
)
CASES = {
    "categories": (PPOConfig, BOX, spaces.Discrete(4, start=-1), {}),
    "bounded": (PPOConfig, BOX, spaces.Box(np.float32([-2, 0]), np.float32([2, 9])), {}),
    "wide": (PPOConfig, BOX, spaces.Box(np.float32([-1e4, 0]), np.float32([1e4, np.inf])), {}),
    "unbounded": (PPOConfig, BOX, spaces.Box(-np.inf, np.inf, (2,)), {}),
    "beta": (PPOConfig, BOX, spaces.Box(-4.0, 1.0, (2,)), {"distribution": "beta"}),
    "nested": (PPOConfig, MANY, MANY, {}),
    "masked": (PPOConfig, MASKED, spaces.Discrete(4), {}),
    "autoregressive": (
        PPOConfig, BOX, spaces.MultiDiscrete([3, 4]), {"distribution": "autoregressive"},
    ),
    "autoregressive, nested": (
        PPOConfig, BOX, spaces.Tuple((spaces.Discrete(2), spaces.Discrete(3))),
        {"distribution": "autoregressive", "use_lstm": True, **MEMORY},
    ),
    "images": (PPOConfig, spaces.Box(0, 255, (10, 10, 3), np.uint8), spaces.Discrete(3), {}),
    "camera": (PPOConfig, CAMERA, spaces.Discrete(3), {"conv": [[2, 4, 4]], "conv_head": 8}),
    "lstm": (PPOConfig, BOX, spaces.Box(-2.0, 2.0, (2,)), {"use_lstm": True, **MEMORY}),
    "lstm, heads": (
        PPOConfig, BOX, spaces.Discrete(3), {"use_lstm": True, **MEMORY, "head_hidden": [4]},
    ),
    "gru": (PPOConfig, spaces.Discrete(5), spaces.Discrete(3), {"use_gru": True, **MEMORY}),
    "attention": (PPOConfig, BOX, spaces.MultiDiscrete([2, 3]), {**ATTENTION, **LOOKS_BACK}),
    "values": (DQNConfig, BOX, spaces.Discrete(4), {}),
    "squashed": (SACConfig, BOX, spaces.Box(-5.0, 1.0, (2,)), {}),
}  # fmt: skip
LIMITS = {"torchscript": 1e-6, "onnx": 3e-6}
"""ONNX Runtime has a tanh of its own, which differs from numpy's in the last digit."""


def config_of(kind, observations, actions, model):
    register_env("shapes", lambda _: Shapes(observations, actions))
    config = kind().environment("shapes").model(hidden=[8], **model).debugging(seed=3)
    if kind is not PPOConfig:
        return config
    if observations is MASKED:
        config.env_runners(preprocessor_pref=None)
    images = isinstance(observations, spaces.Box) and observations.dtype == np.uint8
    config.env_runners(observation_filter="NoFilter" if images else "MeanStdFilter")
    return config.training(train_batch_size=64, minibatch_size=64, num_epochs=1)


def checkpoint(config, path, learn=True):
    """A checkpoint of a policy whose weights and statistics are far from where they begin."""
    algorithm = config.build()
    try:
        if learn and isinstance(config, PPOConfig):
            algorithm.train()
        torch.manual_seed(5)
        with torch.no_grad():
            for parameter in algorithm.policies.modules().parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        algorithm.save(path)
    finally:
        algorithm.stop()
    return path


def restrained(case, form):
    """The quickest cases are fast; all are the other tier's."""
    quick = form == "torchscript" and case in ("nested", "camera", "lstm", "squashed", "wide")
    return pytest.param(case, form, marks=() if quick else pytest.mark.learning)


@pytest.mark.parametrize(
    ("case", "form"), [restrained(case, form) for form in LIMITS for case in CASES]
)
def test_a_file_acts_as_the_policy_does(case, form, tmp_path):
    if form == "onnx":
        pytest.importorskip("onnxruntime")
    path = checkpoint(config_of(*CASES[case]), tmp_path / "checkpoint")
    (written,) = export(path, **{form: tmp_path / "policy"})
    assert written.difference <= LIMITS[form]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checkpoint", "policy"]


@pytest.mark.parametrize(
    "case", ["categories", "bounded", "masked", "autoregressive", "gru", "attention", "values"]
)
def test_what_is_written_to_a_file_acts_as_the_policy_does(case, tmp_path, monkeypatch):
    """The module itself; writing and reading files of all of them takes a minute."""
    modules = []

    def write(exported, path):
        modules.append(exported)
        path.touch()

    def load(path):
        def run(inputs):
            with torch.no_grad():
                outputs = modules[0](*map(torch.from_numpy, inputs.values()))
            return {k: v.numpy() for k, v in zip(modules[0].outputs, outputs, strict=True)}

        return run

    monkeypatch.setitem(FORMATS, "torchscript", (write, load))
    path = checkpoint(config_of(*CASES[case]), tmp_path / "checkpoint")
    (written,) = export(path, torchscript=tmp_path / "policy")
    assert written.difference <= 1e-6
    # Else a program with a memory would record all of its past.
    assert not any(parameter.requires_grad for parameter in modules[0].parameters())


class Moody(ActorCritic):
    """Computes something else where a batch's numbers are large."""

    def forward_inference(self, batch):
        outputs = super().forward_inference(batch)
        return {k: -v if batch["obs"].sum() > 0 else v for k, v in outputs.items()}


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A checkpoint of a network that learns and of a policy written in numpy."""
    config = (
        PPOConfig()
        .environment("rlrun.envs.multi_agent_examples:RockPaperScissors")
        .model(hidden=[4])
        .multi_agent(
            policies={
                "learned": {},
                "fixed": {"use": "rlrun.envs.multi_agent_examples:AlwaysSame", "train": False},
            },
            agents={"player_0": "learned", "player_1": "fixed"},
        )
    )
    return checkpoint(config, tmp_path_factory.mktemp("several") / "checkpoint", learn=False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "there are several policies, name one with --policy: learned, fixed"),
        ({"policy_id": "learnt"}, "there is no policy 'learnt'"),
        ({"policy_id": "fixed"}, "AlwaysSame computes actions in its own Python code"),
    ],
)
def test_a_policy_that_is_not_there_or_is_python_code_is_refused(several, options, says, tmp_path):
    with pytest.raises(InputError, match=says):
        export(several, torchscript=tmp_path / "policy.pt", **options)
    assert not list(tmp_path.iterdir())


def test_one_of_several_policies_is_written(several, tmp_path):
    (written,) = export(several, torchscript=tmp_path / "policy.pt", policy_id="learned")
    assert (written.policy_id, written.path.is_file()) == ("learned", True)


class Own(LearningPolicy):
    """Learns by itself, and acts with a module."""

    def loss(self, module, rows):
        raise NotImplementedError


def test_the_module_of_a_policy_that_learns_by_itself_is_written(tmp_path):
    policies = {"own": {"use": f"{__name__}:Own", "config": {"hidden": [4]}}}
    config = (
        PPOConfig()
        .environment("rlrun.envs.multi_agent_examples:RockPaperScissors")
        .multi_agent(policies=policies, agents={"player_0": "own", "player_1": "own"})
    )
    path = checkpoint(config, tmp_path / "checkpoint", learn=False)
    (written,) = export(path, torchscript=tmp_path / "policy.pt")
    assert written.difference <= 1e-6


def test_a_network_that_depends_on_the_numbers_in_its_batch_is_refused(tmp_path):
    config = config_of(PPOConfig, BOX, spaces.Box(-2.0, 2.0, (2,)), {"use": f"{__name__}:Moody"})
    path = checkpoint(config, tmp_path / "checkpoint", learn=False)
    with pytest.raises(InputError, match="its actions differ from the policy's by"):
        export(path, torchscript=tmp_path / "policy.pt")
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint"]


class LooksFurtherBack(ActorCritic):
    """Sees the action of the step before the last one, and not the last one."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.view_requirements["earlier"] = ViewRequirement("actions", shift=-2)

    def forward_inference(self, batch):
        outputs = super().forward_inference(batch)
        return {k: v + 0.0 * batch["earlier"].sum() for k, v in outputs.items()}


def test_a_network_that_looks_past_the_last_steps_is_refused(tmp_path):
    model = {"use": f"{__name__}:LooksFurtherBack"}
    path = checkpoint(config_of(PPOConfig, BOX, spaces.Discrete(2), model), tmp_path / "checkpoint")
    with pytest.raises(InputError, match=r"view 'earlier' is of 'actions', steps \[-2\]"):
        export(path, torchscript=tmp_path / "policy.pt")


def test_half_precision_goes_to_torchscript_alone(tmp_path):
    images, model = spaces.Box(0, 255, (10, 10, 3), np.uint8), {"conv_dtype": "bfloat16"}
    path = checkpoint(config_of(PPOConfig, images, spaces.Discrete(3), model), tmp_path / "saved")
    assert export(path, torchscript=tmp_path / "policy.pt")
    with pytest.raises(InputError, match=r"conv_dtype.*--torchscript"):
        export(path, onnx=tmp_path / "policy.onnx")


def test_what_an_exporter_failed_at_is_said(tmp_path, monkeypatch):
    def write(exported, path):
        try:
            raise ValueError("no such operation\nmore")
        except ValueError as error:
            raise RuntimeError("the export failed") from error

    monkeypatch.setitem(room.FORMATS, "torchscript", (write, None))
    path = checkpoint(config_of(PPOConfig, BOX, spaces.Discrete(2), {}), tmp_path / "saved", False)
    with pytest.raises(InputError, match=r"cannot be exported: no such operation$"):
        export(path, torchscript=tmp_path / "policy.pt")


def test_one_file_cannot_have_both_formats(tmp_path):
    path = tmp_path / "policy"
    with pytest.raises(InputError, match="--onnx and --torchscript need different files"):
        export(tmp_path, onnx=path, torchscript=tmp_path / ".." / tmp_path.name / "policy")


def test_a_missing_package_is_noticed_before_anything_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr(room, "is_installed", lambda name: name != "onnxscript")
    with pytest.raises(InputError, match=r'onnxscript: pip install "rlrun\[export\]"'):
        export(tmp_path / "no_run", onnx=tmp_path / "policy.onnx")
