"""What travels to runners: their spec, with the user's code in it, and requests for fragments."""

import pickle

import pytest
from counting_envs import CountingEnv
from ray import cloudpickle

from rlrun.config.registry import GIVEN
from rlrun.config.schema import EnvRunnersConfig
from rlrun.sampling.runner_messages import RunnerSpec, SampleRequest, lone_request


def test_a_spec_takes_code_without_an_import_path_along_and_no_other(monkeypatch):
    spec, other = (RunnerSpec(lambda config, n=n: n, seed=n) for n in (1, 2))
    assert list(spec.code) == [spec.env.use] != [other.env.use]
    sent = cloudpickle.dumps(spec)
    for each in (spec, other):
        monkeypatch.delitem(GIVEN, each.env.use)
    received = pickle.loads(sent)
    assert vars(received) == vars(spec)
    assert GIVEN[received.env.use]({}) == 1
    assert other.env.use not in GIVEN
    assert RunnerSpec(CountingEnv).code == {}


@pytest.mark.parametrize(("gpus", "device"), [(0, None), (0.5, "cuda")])
def test_runners_that_are_actors_act_on_their_gpus(gpus, device):
    spec = RunnerSpec("CartPole-v1", EnvRunnersConfig(num_gpus_per_env_runner=gpus))
    assert spec.device is None
    assert spec.of_actors().device == device


@pytest.mark.parametrize(("length", "expected"), [("auto", 200), (50, 50)])
def test_a_runner_by_itself_asks_for_the_length_of_its_settings(length, expected):
    settings = EnvRunnersConfig(rollout_fragment_length=length)
    assert lone_request(settings, 3, 9) == SampleRequest(3, expected, 9)
