"""PG, A2C, A3C and PPO: whole iterations equal those in plain torch."""

import pytest
from comparison import compare
from plain_connectors import filtered, scaled_rewards
from plain_learners import a2c, a3c, pg, ppo
from plain_networks import ActorCritic

from rlrun import A2CConfig, A3CConfig, PGConfig, PPOConfig

LR, COEFF = [[0, 0.01], [40, 0.03], [200, 0.01]], [[0, 0.02], [100, 0.2]]
CRITIC = {"lambda_": 0.8, "gamma": 0.9, "vf_loss_coeff": 0.7, "entropy_coeff": COEFF, "lr": LR}
EPOCHS = {"minibatch_size": 20, "num_epochs": 2}


def small(config, size=48, length="auto", **training):
    config = config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=length)
    return config.training(train_batch_size=size, **training).model(hidden=[8])


ALGORITHMS = {
    "PG": (lambda: small(PGConfig(), lr=LR, gamma=0.9), pg),
    "PG in parts": (lambda: small(PGConfig(), length=6, microbatch_size=7, lr=LR), pg),
    "A2C": (lambda: small(A2CConfig(), microbatch_size=20, **CRITIC), a2c),
    "A2C, RMSProp": (lambda: small(A2CConfig(), optimizer="rmsprop", **CRITIC), a2c),
    "A2C, torch's RMSProp": (
        lambda: small(A2CConfig(), optimizer="rmsprop", rmsprop_start=0, **CRITIC),
        a2c,
    ),
    "A3C": (lambda: small(A3CConfig(), length=8, **CRITIC), a3c),
    "PPO": (lambda: clipping(clip_param=0.1), ppo),
    "PPO, KL": (lambda: clipping(kl_coeff=0.5, kl_target=0.02, vf_clip_param=0.3), ppo),
    "PPO, high KL": (lambda: clipping(kl_coeff=0.5, kl_target=0.001), ppo),
    "PPO, early": (lambda: clipping(target_kl=0.01, normalize_advantages="batch"), ppo),
    "PPO, plain": (lambda: clipping(normalize_advantages=None, grad_clip_by="norm"), ppo),
    "PPO, fragments": (lambda: small(clipping(grad_clip_by="value"), length=4), ppo),
}


def clipping(**training):
    return small(
        PPOConfig(), **{**EPOCHS, **CRITIC, "clip_param": [[0, 0.3], [96, 0.1]], **training}
    )


def filtering(config):
    config = config.env_runners(observation_filter="MeanStdFilter")
    return config.connectors(normalize_rewards=True, clip_rewards=1.5)


def connect(streams, steps):
    return scaled_rewards(filtered(streams, steps), gamma=0.9, clip=1.5)


@pytest.mark.parametrize("actions", ["discrete", "unbounded"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_iterations_equal_the_transcription(name, actions, tmp_path):
    make, transcription = ALGORITHMS[name]
    compare(make(), transcription, ActorCritic(), tmp_path, actions=actions)


@pytest.mark.parametrize(
    ("env", "model"),
    [
        ({"image": True}, {"conv": [[4, 3, 1], [3, 2, 1]], "conv_head": 5}),
        ({"image": True}, {"conv": [[3, 3, 1]], "conv_head": 5, "head_hidden": [4]}),
        ({}, {"share_layers": True, "activation": "relu"}),
        ({}, {"share_layers": True, "head_hidden": [4], "value_hidden": [3, 3]}),
        ({}, {"use": "own_networks:SineEncoder", "width": 5}),
        ({}, {"use": "own_networks:OwnModule"}),
        ({"actions": "categories"}, {}),
        ({"actions": "binary"}, {}),
        ({"actions": "unbounded"}, {"free_log_std": False, "log_std_init": -2}),
        ({"actions": "unbounded"}, {"use_sde": True, "sde_sample_freq": 5, "log_std_init": -1}),
        ({"actions": "unbounded"}, {"use_sde": True, "activation": "relu", "share_layers": True}),
    ],
    ids=[
        "CNN",
        "CNN before hidden layers",
        "shared layers",
        "shared layers before others",
        "own encoder",
        "own module",
        "categories",
        "binary",
        "computed deviations",
        "state-dependent noise",
        "state-dependent noise behind shared layers",
    ],
)
def test_networks(env, model, tmp_path):
    compare(
        clipping().model(**model),
        ppo,
        ActorCritic(model.get("activation", "tanh")),
        tmp_path,
        **env,
    )


def test_connectors(tmp_path):
    compare(filtering(clipping()), ppo, ActorCritic(), tmp_path, connect=connect)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_autoreset_modes(mode, tmp_path):
    vector = {"use": "logged_envs:logged_vector", "mode": mode}
    compare(filtering(clipping()), ppo, ActorCritic(), tmp_path, connect=connect, **vector)


@pytest.mark.parametrize("name", ["PG", "A2C", "A3C", "PPO, KL"])
def test_two_policies(name, tmp_path):
    make, transcription = ALGORITHMS[name]
    policies = {"a": {}, "b": {"training": {"lr": 0.002, "gamma": 0.8}}}
    config = make().multi_agent(policies=policies, agents={"a": "a", "b": "b"})
    compare(config, transcription, ActorCritic(), tmp_path, use="logged_envs:LoggedAgents")


def test_two_runners(shared_actors, tmp_path):
    config = clipping().env_runners(num_env_runners=2, observation_filter="MeanStdFilter")
    config = config.env_runners(num_cpus_per_env_runner=0.1, rollout_fragment_length=6)

    def pooled(streams, steps):
        return filtered(streams, steps, runners=2)

    compare(config, ppo, ActorCritic(), tmp_path, connect=pooled)
