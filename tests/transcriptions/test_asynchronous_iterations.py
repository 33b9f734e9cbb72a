"""IMPALA and APPO: whole iterations equal those in plain torch, with weights that lag behind."""

import pytest
from comparison import compare
from plain_learners import appo, impala
from plain_networks import ActorCritic

from rlrun import APPOConfig, IMPALAConfig

TRACE = {"vtrace_clip_rho_threshold": 0.9, "vtrace_clip_pg_rho_threshold": 1.1, "lambda_": 0.9}
COMMON = {
    **TRACE,
    "train_batch_size": 48,
    "minibatch_size": 20,
    "lr": [[0, 0.03], [100, 0.01]],
    "entropy_coeff": [[0, 0.02], [100, 0.2]],
    "gamma": 0.9,
    "vf_loss_coeff": 0.7,
    "broadcast_interval": 2,
}
KL = {"kl_coeff": 0.5, "kl_target": 0.02, "normalize_advantages": True, "grad_clip": 0.5}
BUFFER = {"circular_buffer_num_batches": 2, "circular_buffer_iterations_per_batch": 3}
ALGORITHMS = {
    "IMPALA": (IMPALAConfig, impala, {"num_epochs": 2}),
    "IMPALA, RMSProp": (IMPALAConfig, impala, {"optimizer": "rmsprop", "lr": 0.1}),
    "IMPALA, unbounded": (
        IMPALAConfig,
        impala,
        dict.fromkeys([*TRACE][:2]) | {"minibatch_size": None},
    ),
    "APPO": (APPOConfig, appo, {"num_epochs": 2, "target_network_update_freq": 3}),
    "APPO, buffer": (APPOConfig, appo, {**BUFFER, **KL, "clip_param": [[0, 0.3], [96, 0.1]]}),
}


def configured(name):
    config, transcription, training = ALGORITHMS[name]
    config = config().env_runners(num_envs_per_env_runner=2, rollout_fragment_length=8)
    return config.training(**{**COMMON, **training}).model(hidden=[8]), transcription


@pytest.mark.parametrize("actions", ["discrete", "unbounded"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_iterations_equal_the_transcription(name, actions, tmp_path):
    compare(*configured(name), ActorCritic(), tmp_path, actions=actions)


@pytest.mark.parametrize("name", ["IMPALA", "APPO, buffer"])
def test_two_policies(name, tmp_path):
    config, transcription = configured(name)
    policies = {"a": {}, "b": {"training": {"lr": 0.002, "gamma": 0.8}}}
    config = config.multi_agent(policies=policies, agents={"a": "a", "b": "b"})
    compare(config, transcription, ActorCritic(), tmp_path, use="logged_envs:LoggedAgents")
