"""The section `multi_agent`: what it may say, and one message for each thing that is wrong."""

import pytest

from rlrun import PPOConfig
from rlrun.config.dump import dump_yaml
from rlrun.config.loader import load, load_experiment
from rlrun.config.policies import policy_settings
from rlrun.config.problems import ConfigError

CARTPOLE = "rlrun.envs.multi_agent_examples:MultiAgentCartPole"
FILE = f"""
algorithm: PPO
env: {{use: "{CARTPOLE}", num_agents: 3}}
stop: {{env_steps: 10_000}}
model: {{hidden: [32]}}
training: {{lr: 1e-3, gamma: 0.9}}
multi_agent:
  policies:
    one:
    two: {{model: {{hidden: [8]}}, training: {{lr: 1e-4, clip_param: 0.3}}, train: false}}
    rock: {{use: "rlrun.envs.multi_agent_examples:AlwaysSame", hand: 2, train: false}}
  agents: {{agent_0: one, "agent_*": two}}
"""


def write(tmp_path, text):
    path = tmp_path / "several.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_policies_have_settings_of_their_own(tmp_path):
    settings = policy_settings(load_experiment(write(tmp_path, FILE)), "only")
    assert list(settings) == ["one", "two", "rock"]
    one, two, rock = settings.values()
    assert (one.model.hidden, two.model.hidden) == ((32,), (8,))
    assert (one.training.lr, two.training.lr) == (1e-3, 1e-4)
    assert (one.training.gamma, two.training.gamma) == (0.9, 0.9)
    assert (one.training.clip_param, two.training.clip_param) == (0.2, 0.3)
    assert (one.train, two.train, rock.train) == (True, False, False)
    assert dict(rock.kwargs) == {"hand": 2}


def test_only_those_to_train_learn(tmp_path):
    text = FILE + "  policies_to_train: [one]\n"
    settings = policy_settings(load_experiment(write(tmp_path, text)), "only")
    assert [name for name, policy in settings.items() if policy.train] == ["one"]


def to_train(policy_id, batch=None):
    """Code for policies_to_train."""
    return True


def to_train_in_the_old_way(policy_id):
    """It lacks the batch."""
    return True


TO_TRAIN = "test_multi_agent_section:to_train"


def test_code_may_say_who_learns(tmp_path):
    said = load_experiment(write(tmp_path, FILE + f'  policies_to_train: "{TO_TRAIN}"\n'))
    assert [policy.train for policy in policy_settings(said, "only").values()] == [
        True,
        False,
        False,
    ]
    builder = PPOConfig().environment(CARTPOLE)
    built = builder.multi_agent(policies=["agent_0", "agent_1"], policies_to_train=to_train)
    assert built.experiment().multi_agent.policies_to_train == TO_TRAIN


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("two", "expected a list of policy ids or \"package.module:function\", got 'two' - did"),
        ("tow", "did you mean [two]?"),
        (f"{TO_TRAIN}s", "has no 'to_trains' - did you mean to_train?"),
        (f"{TO_TRAIN}_in_the_old_way", "is called with (policy_id, batch), but takes (policy_id)"),
        ("test_multi_agent_section:TO_TRAIN", "cannot be called, it is of type str"),
        ("[one, tow]", "there is no policy 'tow'"),
    ],
)
def test_whoever_is_to_say_who_learns_must_be_able_to(tmp_path, value, message):
    text = FILE + f"  policies_to_train: {value}\n"
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text))
    rendered = caught.value.render()
    assert "multi_agent.policies_to_train" in rendered
    assert message in rendered, rendered


@pytest.mark.parametrize("code", ["", f'  policies_to_train: "{TO_TRAIN}"\n'])
def test_what_is_written_loads_again(tmp_path, code):
    experiment = load_experiment(write(tmp_path, FILE + code))
    path = tmp_path / "again.yaml"
    path.write_text(dump_yaml(experiment), encoding="utf-8")
    assert load_experiment(path) == experiment


def test_a_list_of_ids_will_do_and_the_builder_says_the_same(tmp_path):
    text = f"""
algorithm: PPO
env: "{CARTPOLE}"
stop: {{env_steps: 10_000}}
multi_agent: {{policies: [agent_0, agent_1]}}
"""
    said = load_experiment(write(tmp_path, text))
    built = PPOConfig().environment(CARTPOLE).multi_agent(policies=["agent_0", "agent_1"])
    assert built.experiment().multi_agent == said.multi_agent


@pytest.mark.parametrize(
    ("wrong", "right", "key", "message"),
    [
        ("agent_0: one", "agent_0: onne", "agents.agent_0", "no policy 'onne'"),
        ("lr: 1e-4", "lrr: 1e-4", "policies.two.training.lrr", "did you mean lr?"),
        ("lr: 1e-4", "lr: fast", "policies.two.training.lr", "number"),
        ("hidden: [8]", "hiden: [8]", "policies.two.model.hiden", "did you mean hidden?"),
        ("lr: 1e-4", "train_batch_size: 64", "training.train_batch_size", "one for all policies"),
        ("hand: 2", "model: {hidden: [8]}", "policies.rock.model", "no network"),
        ("AlwaysSame", "AlwaysSane", "policies.rock", "did you mean AlwaysSame?"),
        ("lr: 1e-4", "lr: 1e-4}, exploration: {epsilon: 0", "two.exploration", "does not use"),
        ("train: false}", "trian: false}", "policies", "trian"),
        (
            "algorithm: PPO",
            "algorithm: PPO\nenv_runners: {gym_env_vectorize_mode: async}",
            "env_runners.gym_env_vectorize_mode",
            "steps its environments one after the other; leave this out",
        ),
    ],
)
def test_one_message_names_the_place(tmp_path, wrong, right, key, message):
    assert wrong in FILE
    text = FILE.replace(wrong, right, 1)
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, text))
    lines = [line for line in caught.value.render().splitlines() if f"{key}" in line]
    assert any(message in line for line in lines), caught.value.render()


DQN = f"""
algorithm: DQN
env: "{CARTPOLE}"
stop: {{env_steps: 10_000}}
exploration: {{epsilon: 0.5}}
multi_agent:
  policies:
    agent_0:
    agent_1: {{training: {{lr: 1e-4}}, exploration: {{epsilon: 0.1}}}}
replay: {{capacity: 5000}}
"""


def test_policies_explore_as_they_say(tmp_path):
    settings = policy_settings(load_experiment(write(tmp_path, DQN)), "only")
    assert [policy.exploration.epsilon for policy in settings.values()] == [0.5, 0.1]


@pytest.mark.parametrize(
    ("wrong", "right", "key", "message"),
    [
        ("lr: 1e-4", "noisy: true", "agent_1.exploration.epsilon", "noisy weights explore"),
        ("lr: 1e-4", "num_atoms: 5, v_min: 20", "agent_1.training.v_min", "below v_max 10"),
        ("epsilon: 0.1", "epsilom: 0.1", "agent_1.exploration.epsilom", "did you mean epsilon?"),
        ("exploration: {epsilon: 0.1}", "model: {use_attention: true}", "use_attention", "memory"),
        ("5000", "5000, mode: lockstep, prioritized: true", "replay.mode", "no priorities"),
        ("5000", "5000, mode: lockstepp", "replay.mode", "lockstep"),
        (
            "lr: 1e-4}, exploration: {epsilon: 0.1}}\nreplay: {",
            "minibatch_size: 8}}\nreplay: {mode: lockstep, ",
            "agent_1.training.minibatch_size",
            "one for all policies in lockstep",
        ),
    ],
)
def test_one_message_names_the_place_for_replay_too(tmp_path, wrong, right, key, message):
    assert wrong in DQN
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, DQN.replace(wrong, right, 1)))
    lines = [line for line in caught.value.render().splitlines() if key in line]
    assert any(message in line for line in lines), caught.value.render()


def test_nobody_keeps_step_alone(tmp_path):
    text = DQN.partition("multi_agent:")[0].replace(CARTPOLE, "CartPole-v1")
    with pytest.raises(ConfigError, match=r"replay\.mode: there is one policy only"):
        load(write(tmp_path, text + "replay: {mode: lockstep}\n"))
