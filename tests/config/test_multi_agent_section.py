"""The section `multi_agent`: the settings of its policies, and its error messages."""

import pytest
from loading import errors

from rlrun import PPOConfig
from rlrun.config.dump import dump_yaml
from rlrun.config.loader import load_experiment
from rlrun.config.policies import policy_settings

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


def settings_of(file):
    return policy_settings(load_experiment(file), "only")


def assert_error(file, key, message):
    """Some line names this key and has this message."""
    lines = [line for line in errors(file) if key in line]
    assert any(message in line for line in lines), errors(file)


def test_policies_have_settings_of_their_own(write):
    settings = settings_of(write(FILE, minimal=False))
    assert list(settings) == ["one", "two", "rock"]
    one, two, rock = settings.values()
    assert (one.model.hidden, two.model.hidden) == ((32,), (8,))
    assert (one.training.lr, two.training.lr) == (1e-3, 1e-4)
    assert (one.training.gamma, two.training.gamma) == (0.9, 0.9)
    assert (one.training.clip_param, two.training.clip_param) == (0.2, 0.3)
    assert (one.train, two.train, rock.train) == (True, False, False)
    assert dict(rock.kwargs) == {"hand": 2}


def test_only_policies_to_train_learn(write):
    text = FILE + "  policies_to_train: [one]\n"
    settings = settings_of(write(text, minimal=False))
    assert [name for name, policy in settings.items() if policy.train] == ["one"]


def to_train(policy_id, batch=None):
    """Code for policies_to_train."""
    return True


def to_train_in_the_old_way(policy_id):
    """It lacks the batch."""
    return True


TO_TRAIN = "test_multi_agent_section:to_train"


def test_code_may_choose_the_policies_that_learn(write):
    loaded = load_experiment(write(FILE + f'  policies_to_train: "{TO_TRAIN}"\n', minimal=False))
    trained = [policy.train for policy in policy_settings(loaded, "only").values()]
    assert trained == [True, False, False]
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
        ("test_multi_agent_section:TO_TRAIN", "is not callable: it is of type str"),
        ("[one, tow]", "there is no policy 'tow'"),
    ],
)
def test_wrong_policies_to_train_are_errors(write, value, message):
    file = write(FILE + f"  policies_to_train: {value}\n", minimal=False)
    assert_error(file, "multi_agent.policies_to_train", message)


@pytest.mark.parametrize("code", ["[]", "[two]"])
def test_an_iteration_that_no_policy_would_end_is_an_error(write, code):
    key = "report.min_train_timesteps_per_iteration"
    file = FILE + f"  policies_to_train: {code}\nreport: {{min_train_timesteps_per_iteration: 9}}\n"
    assert_error(write(file, minimal=False), key, "no policy learns")
    load_experiment(write(file.replace(code, "[one]"), minimal=False))


@pytest.mark.parametrize("code", ["", f'  policies_to_train: "{TO_TRAIN}"\n'])
def test_a_dumped_experiment_loads_again(write, code):
    experiment = load_experiment(write(FILE + code, minimal=False))
    assert load_experiment(write(dump_yaml(experiment), minimal=False)) == experiment


def test_a_list_of_ids_is_enough_also_in_the_builder(write):
    text = f"""
algorithm: PPO
env: "{CARTPOLE}"
stop: {{env_steps: 10_000}}
multi_agent: {{policies: [agent_0, agent_1]}}
"""
    loaded = load_experiment(write(text, minimal=False))
    built = PPOConfig().environment(CARTPOLE).multi_agent(policies=["agent_0", "agent_1"])
    assert built.experiment().multi_agent == loaded.multi_agent


@pytest.mark.parametrize(
    ("wrong", "right", "key", "message"),
    [
        ("agent_0: one", "agent_0: onne", "agents.agent_0", "no policy 'onne'"),
        ("lr: 1e-4", "lrr: 1e-4", "policies.two.training.lrr", "did you mean lr?"),
        ("lr: 1e-4", "lr: fast", "policies.two.training.lr", "expected a number or sch"),
        ("hidden: [8]", "hiden: [8]", "policies.two.model.hiden", "did you mean hidden?"),
        (
            "lr: 1e-4",
            "train_batch_size: 9",
            "training.train_batch_size",
            "the same for all policies",
        ),
        ("lr: 1e-4", "minibatch_size: 9999", "two.training.minibatch_size", "does not fit"),
        ("hand: 2", "model: {hidden: [8]}", "policies.rock.model", "not a network"),
        ("AlwaysSame", "AlwaysSane", "policies.rock", "did you mean AlwaysSame?"),
        ("lr: 1e-4", "lr: 1e-4}, exploration: {epsilon: 0", "two.exploration", "does not use"),
        ("train: false}", "trian: false}", "policies", "trian"),
        (
            "algorithm: PPO",
            "algorithm: PPO\nenv_runners: {gym_env_vectorize_mode: vector_entry_point}",
            "env_runners.gym_env_vectorize_mode",
            'it needs an environment of one agent; remove this key, or set it to "async"',
        ),
    ],
)
def test_errors_name_the_place(write, wrong, right, key, message):
    assert wrong in FILE
    assert_error(write(FILE.replace(wrong, right, 1), minimal=False), key, message)


def test_wrong_keys_of_policies_are_told_together_with_all_others(write):
    text = FILE.replace("lr: 1e-4", "lrr: 1e-4").replace("hidden: [8]", "hiden: [8]")
    text = text.replace("one:\n", "one: {sed: 3}\n").replace("model:", "sead: 3\nmodel:", 1)
    lines = errors(write(text, minimal=False))
    keys = ["sead", "policies.one.sed", "policies.two.model.hiden", "policies.two.training.lrr"]
    assert all(f"{key}: unknown" in line for key, line in zip(keys, lines, strict=True))


def test_settings_of_policies_are_not_judged_without_an_algorithm(write):
    lines = errors(write(FILE.replace("PPO", "PPOO"), minimal=False))
    assert ["algorithm:" in line for line in lines] == [True]


@pytest.mark.parametrize(
    ("algorithm", "own", "message"),
    [
        ("IMPALA", "broadcast_interval: 7", "the same for all policies"),
        ("APPO", "learner_queue_size: 7", "the same for all policies"),
        ("A3C", "learner_connectors: ['test_multi_agent_section:to_train']", "their own rows"),
    ],
)
def test_settings_that_one_policy_cannot_have_are_refused(write, algorithm, own, message):
    text = FILE.replace("PPO", algorithm).replace("lr: 1e-4, clip_param: 0.3", own)
    assert_error(write(text, minimal=False), f"two.training.{own.partition(':')[0]}", message)


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


def test_each_policy_explores_by_its_own_settings(write):
    settings = settings_of(write(DQN, minimal=False))
    assert [policy.exploration.epsilon for policy in settings.values()] == [0.5, 0.1]


@pytest.mark.parametrize(
    ("wrong", "right", "key", "message"),
    [
        (
            "lr: 1e-4",
            "noisy: true",
            "agent_1.exploration.epsilon",
            "noisy weights (training.noisy) explore",
        ),
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
def test_errors_of_replay_name_the_place(write, wrong, right, key, message):
    assert wrong in DQN
    assert_error(write(DQN.replace(wrong, right, 1), minimal=False), key, message)


def test_lockstep_needs_several_policies(write):
    text = DQN.partition("multi_agent:")[0].replace(CARTPOLE, "CartPole-v1")
    file = write(text + "replay: {mode: lockstep}\n", minimal=False)
    assert_error(file, "replay.mode", "there is only one policy")
