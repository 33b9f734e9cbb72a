"""Relations between fields: what is refused, what is warned about."""

import pytest

from rlrun.config.checks import RESULT_KEYS
from rlrun.config.loader import load
from rlrun.config.problems import ConfigError
from rlrun.config.registry import ALGORITHMS
from rlrun.config.retired import STOP_KEYS

KNOWN = "algorithm: Known\nenv: CartPole-v1\n"


@pytest.fixture(autouse=True)
def _known_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "Known", "fake_algorithm:Fake")


def errors(write, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(write(KNOWN + text, minimal=False))
    return [f"{problem.key}: {problem.message}" for problem in caught.value.problems]


def warned(write, text: str) -> list[str]:
    loaded = load(write(KNOWN + text, minimal=False))
    return [f"{problem.key}: {problem.message}" for problem in loaded.warnings]


@pytest.mark.parametrize("key", [*RESULT_KEYS, "timers/sample_s", "learners/default_policy/x"])
def test_known_stop_keys(write, key: str) -> None:
    load(write(f"{KNOWN}stop: {{{key}: 1e9}}", minimal=False))


def test_unknown_and_retired_stop_keys(write) -> None:
    assert errors(write, "stop: {episode_return: 3}")[0].startswith(
        "stop.episode_return: no result has the key episode_return - did you mean episode_return_m"
    )
    assert "there is training_iteration, env_steps" in errors(write, "stop: {zzz: 3}")[0]
    assert errors(write, "stop: {timesteps_total: 3}") == [
        "stop.timesteps_total: retired result key timesteps_total; its successor is env_steps"
    ]
    assert set(STOP_KEYS.values()) <= set(RESULT_KEYS)


def test_callbacks_may_add_result_keys(write) -> None:
    load(
        write(f"{KNOWN}stop: {{my_key: 3}}\ncallbacks: ['fake_algorithm:Callback']", minimal=False)
    )


def test_evaluation_keys_need_evaluation(write) -> None:
    text = "stop: {evaluation/episode_return_mean: 3}\ncheckpoint: {metric: evaluation/x}"
    assert errors(write, text) == [
        "stop.evaluation/episode_return_mean: evaluation/episode_return_mean never appears: "
        "evaluation.interval is null; evaluation.interval: 10 works",
        "checkpoint.metric: evaluation/x never appears: evaluation.interval is null; "
        "evaluation.interval: 10 works",
    ]
    load(write(f"{KNOWN}{text}\nevaluation: {{interval: 1}}", minimal=False))


def test_what_the_algorithm_says(write) -> None:
    assert errors(write, "training: {train_batch_size: 2047}") == [
        "training.train_batch_size: not a multiple of 8"
    ]


def test_warnings(write) -> None:
    assert warned(write, "stop: {env_steps: 100_000}") == []
    assert warned(write, "")[0].startswith("stop: no criterion: the run goes on")
    assert warned(write, "stop: {env_steps: 100}") == [
        "stop.env_steps: 100 env steps are less than one iteration, training.train_batch_size = "
        "2,048: the run ends after that one"
    ]
    text = "stop: {env_steps: 10_000}\ncheckpoint: {every: 6}\nevaluation: {interval: 5}"
    assert warned(write, text) == [
        "checkpoint.every: every 6 iterations is never: the run ends after 5; every: 5 works"
    ]


def test_memories_that_contradict_something(write) -> None:
    assert errors(write, "model: {use_lstm: true, use_gru: true}") == [
        "model.use_gru: only one memory can stand behind the encoder; set use_lstm to false"
    ]
    found = errors(write, "model: {use_gru: true, share_layers: false}")
    assert found[0].startswith("model.share_layers: policy and value function share their encoder")
    whole = "{use: 'rlrun.policies.rl_module:ActorCritic', use_lstm: true}"
    assert errors(write, f"model: {whole}") == [
        "model.use_lstm: rlrun.policies.rl_module:ActorCritic is a whole RLModule, around which no "
        "memory goes; leave this out"
    ]
