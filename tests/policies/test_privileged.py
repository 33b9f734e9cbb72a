"""Privileged observations: values depend on them, actions do not, and need not be given them."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun import PPOConfig, SACConfig, export, load_policy
from rlrun.config.problems import ConfigError
from rlrun.data import columns as col
from rlrun.envs.env import register_env
from rlrun.policies.soft_actor_critic import Q_VALUES

spaces = gym.spaces
JOINTS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
PARTS = {
    "friction": spaces.Discrete(3, start=2),
    "joints": JOINTS,
    "masses": spaces.Box(0.0, 9.0, (2,), np.float64),
}
BY_NAME = {"friction", "masses"}
ARM = spaces.Box(np.float32([-0.5, -1]), np.float32([1.5, 3]))
CAMERA = spaces.Box(0, 255, (9, 9, 3), np.uint8)


class Arm(gym.Env):
    """Random observations; the friction and the masses are known to the simulator alone."""

    def __init__(self, camera=False, choices=0):
        parts = {**PARTS, "camera": CAMERA} if camera else PARTS
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Discrete(choices) if choices else ARM

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        observation = self.observation_space.sample()
        return observation, float(observation["masses"].sum()), False, False, {}


class Squares(torch.nn.Module):
    """An encoder of one's own."""

    def __init__(self, observation_space):
        super().__init__()
        self.output_size = 2 * observation_space.shape[0]

    def forward(self, obs):
        return torch.cat((obs, obs**2), dim=-1)


SQUARES = f"{__name__}:Squares"
ATTENTION = {"use_attention": True, "attention_dim": 8, "attention_memory": 3}
MEMORY = {"use_lstm": True, "lstm_cell_size": 6, "value_hidden": [5]}
CASES = {
    "layers": (PPOConfig, {}, {"value_hidden": [7, 6]}),
    "discrete": (PPOConfig, {"choices": 3}, {}),
    "memory": (PPOConfig, {}, MEMORY),
    "memory, heads": (PPOConfig, {}, {**MEMORY, "value_hidden": None, "head_hidden": [4]}),
    "attention": (PPOConfig, {}, ATTENTION),
    "images": (PPOConfig, {"camera": True}, {"conv": [[2, 4, 4]], "conv_head": 8}),
    "encoder": (PPOConfig, {}, {"use": SQUARES}),
    "critics": (SACConfig, {}, {}),
    "critics, images": (SACConfig, {"camera": True}, {"conv": [[2, 4, 4]], "conv_head": 8}),
    "critics, encoder": (SACConfig, {}, {"use": SQUARES}),
}


def config_of(kind, env, model, **settings):
    register_env("arm", Arm)
    config = kind().environment("arm", **env).debugging(seed=3)
    config.model(**{"hidden": [8], "privileged": sorted(BY_NAME), **model})
    settings.setdefault("observation_filter", "NoFilter" if env.get("camera") else "MeanStdFilter")
    config.env_runners(horizon=20, **settings)
    if kind is SACConfig:
        batches = {"train_batch_size": 16, "minibatch_size": 8, "training_intensity": 2}
        return config.training(**batches, num_steps_sampled_before_learning_starts=8)
    return config.training(train_batch_size=16, minibatch_size=16, num_epochs=1)


@pytest.fixture
def built():
    algorithms = []

    def build(*case, **settings):
        algorithms.append(config_of(*case, **settings).build())
        return algorithms[-1]

    yield build
    for algorithm in algorithms:
        algorithm.stop()


def changed(observations):
    """The same observations, all that is privileged redrawn."""
    rng = np.random.default_rng(0)
    others = {name: part.copy() for name, part in observations.items()}
    others["friction"] = rng.permutation(others["friction"])
    others["masses"] = rng.uniform(0, 9, others["masses"].shape)
    return others


@pytest.mark.parametrize("case", CASES)
def test_values_depend_on_what_is_privileged_and_actions_do_not(case, built):
    algorithm = built(*CASES[case])
    algorithm.train()
    connectors = algorithm.evaluator.connectors("default_policy", num_envs=0)
    policy, module = connectors.policy, algorithm.learners["default_policy"].module
    policy.set_weights(algorithm.policies.present_weights()["default_policy"])
    space = gym.vector.utils.batch_space(connectors.env_spaces[0], 12)
    space.seed(1)
    raw = space.sample()
    states = [np.repeat(state[None], 12, 0) for state in policy.get_initial_state()]
    if case == "attention":
        states = [np.repeat(state[:, None], 3, 1) for state in states]
    outputs, values = [], []
    for observations in (raw, changed(raw)):
        rows = connectors.observations(observations, update=False)
        given = {col.OBS: rows, **{f"state_in_{k}": state for k, state in enumerate(states)}}
        fetches = policy.compute_actions_from_input_dict(given, explore=False)[2]
        outputs.append(fetches[col.ACTION_DIST_INPUTS])
        batch = {name: torch.as_tensor(x) for name, x in given.items() if name != col.OBS}
        obs = rows if rows.dtype.names is None else {name: rows[name] for name in rows.dtype.names}
        batch[col.OBS] = (
            torch.as_tensor(obs)
            if isinstance(obs, np.ndarray)
            else {name: torch.as_tensor(part.copy()) for name, part in obs.items()}
        )
        inputs = module.forward_train(batch)[col.ACTION_DIST_INPUTS]
        np.testing.assert_allclose(inputs.detach(), outputs[-1], rtol=1e-4, atol=1e-5)
        if col.VF_PREDS in module.forward_train(batch):
            values.append(module.compute_values(batch))
            torch.testing.assert_close(module.forward_train(batch)[col.VF_PREDS], values[-1])
        else:
            batch[col.ACTIONS] = torch.zeros(12, 2)
            critic = algorithm.replay.updaters["default_policy"].critic
            values.append(critic.module.forward_train(batch)[Q_VALUES])
    np.testing.assert_array_equal(*outputs)
    assert (values[0] != values[1]).any()


def test_flattened_observations_have_what_is_privileged_last(built):
    algorithm = built(*CASES["layers"])
    batch = algorithm.env_runner_group.local_env_runner.sample()
    assert batch[col.OBS].shape[1] == 3 + 3 + 2
    frictions = batch[col.OBS][:, 3:6]  # one-hot, which the filter leaves as it is
    assert (frictions.sum(axis=1) == 1).all()
    algorithm = built(*CASES["layers"], observation_filter="NoFilter")
    masses = algorithm.env_runner_group.local_env_runner.sample()[col.OBS][:, 6:]
    assert ((masses >= 0) & (masses <= 9)).all()


@pytest.mark.parametrize("case", ["layers", "memory", "images", "critics"])
def test_a_trained_policy_acts_where_nothing_privileged_is_known(case, built, tmp_path):
    algorithm = built(*CASES[case])
    algorithm.train()
    algorithm.save(tmp_path / "checkpoint")
    policy = load_policy(tmp_path / "checkpoint")
    whole = algorithm.acting_policy(num_envs=2)
    assert not BY_NAME & policy.observation_space.keys()
    env = Arm(**CASES[case][1])
    observation, _ = env.reset(seed=1)
    for _ in range(3):
        known = {key: part for key, part in observation.items() if key not in BY_NAME}
        action = policy.compute_single_action(known)
        batched = {key: np.stack([part, part]) for key, part in observation.items()}
        np.testing.assert_array_equal(whole.compute_actions(batched), [action, action])
        observation, *_ = env.step(action)
    with pytest.raises(ValueError, match="keys"):
        policy.compute_single_action({"masses": observation["masses"]})
    (written,) = export(tmp_path / "checkpoint", torchscript=tmp_path / "policy.pt")
    assert written.difference < 1e-6
    assert not any(name in written.signature for name in BY_NAME)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"privileged": ["mases"]}, "no entry 'mases'.* did you mean masses?"),
        ({"privileged": ["friction", "joints", "masses"]}, "nothing to act on"),
        ({"share_layers": True}, "model.share_layers: with model.privileged"),
        ({"use": "rlrun.policies.rl_module:ActorCritic"}, "chooses its inputs itself"),
    ],
)
@pytest.mark.parametrize("preprocessor", ["deepmind", None])
def test_what_cannot_be_privileged_is_an_error(settings, message, preprocessor, built):
    settings = {**settings, **({} if preprocessor else {"value_hidden": None})}
    with pytest.raises(ConfigError, match=message):
        built(
            PPOConfig, {}, settings, preprocessor_pref=preprocessor, observation_filter="NoFilter"
        )


def test_other_observations_than_a_dict_have_nothing_privileged():
    config = PPOConfig().environment("CartPole-v1").model(privileged=["masses"])
    with pytest.raises(ConfigError, match="names entries of a Dict observation"):
        config.build()
