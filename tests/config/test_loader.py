# ruff: noqa: E501 - error lines in full
"""From a file and a command line to an experiment, or to every error of both."""

from pathlib import Path

import pytest
from loading import errors

from rlrun.config.loader import load, load_experiment
from rlrun.config.registry import ALGORITHMS, configs_folder


def test_minimal_file_has_the_defaults(write):
    experiment = load_experiment(write())
    assert experiment.name == "exp"
    assert experiment.env.use == "CartPole-v1"
    assert experiment.training.num_epochs == 4
    assert experiment.env_runners.rollout_fragment_length == "auto"
    assert experiment.stop == {"env_steps": 100_000}


def test_every_error_of_a_file_at_once(write):
    text = """\
algorithm: fake_algorithm:Fake
env: {use: CartPol-v1}
sead: 3
lr: 1e-3
stop: {episode_reward_mean: 475, env_steps: "300"}
env_runners:
  num_env_runnrs: 2
  num_rollout_workers: 3
  num_envs_per_env_runner: true
  rollout_fragment_length: 0
  observation_filter: MeanStd
  explore: no
model: {hidden: [64, 6.5], activation: tan}
training: {lr: [[0, 1], [5, x]], gamma: 1:30, num_epoch: 3, hidden: [3], train_batch_size: 012}
callbacks: [nowhere.at_all:c, {use: fake_algorithm:CONSTANT}]
report: {sinks: [consol]}
"""
    assert errors(write(text, minimal=False), ["training.clip=x", "nope", "trainin.lr=3"]) == [
        "exp.yaml:2:7: env.use: no environment 'CartPol-v1' is registered with gymnasium or "
        "register_env() - did you mean CartPole-v1?",
        "exp.yaml:3:1: sead: unknown top-level key - did you mean seed?",
        "exp.yaml:4:1: lr: unknown key at the top of the file; it belongs to training - did you mean "
        "training.lr?",
        "exp.yaml:5:8: stop.episode_reward_mean: no result has the key episode_reward_mean; use "
        "episode_return_mean",
        "exp.yaml:5:34: stop.env_steps: expected a number, got the text '300' - did you mean 300, "
        "without quotes?",
        "exp.yaml:7:3: env_runners.num_env_runnrs: unknown key in section env_runners - did you mean "
        "num_env_runners?",
        "exp.yaml:8:3: env_runners.num_rollout_workers: retired; use env_runners.num_env_runners",
        "exp.yaml:9:3: env_runners.num_envs_per_env_runner: expected a whole number of at least 1, "
        "got true",
        "exp.yaml:10:3: env_runners.rollout_fragment_length: expected a whole number of at least 1 or "
        '"auto", got 0',
        'exp.yaml:11:3: env_runners.observation_filter: expected "NoFilter" or "MeanStdFilter", got '
        "the text 'MeanStd' - did you mean MeanStdFilter?",
        "exp.yaml:12:3: env_runners.explore: expected true or false, got the text 'no' - did you mean "
        "false?",
        "exp.yaml:13:22: model.hidden[1]: expected a whole number of at least 1, got 6.5",
        'exp.yaml:13:28: model.activation: expected "tanh", "relu", "elu", "silu", "gelu" or "linear", '
        "got the text 'tan' - did you mean tanh?",
        "exp.yaml:14:29: training.lr[1][1]: expected a number from 0 to 10, got the text 'x'",
        "exp.yaml:14:34: training.gamma: expected a number from 0 to 1, got the text '1:30'",
        "exp.yaml:14:47: training.num_epoch: unknown key in section training - did you mean "
        "num_epochs?",
        "exp.yaml:14:61: training.hidden: unknown key in section training; it belongs to model - did "
        "you mean model.hidden?",
        "exp.yaml:14:74: training.train_batch_size: expected a whole number of at least 1, got the "
        "text '012' - did you mean 12? A leading zero makes it text",
        "exp.yaml:15:13: callbacks[0]: there is no module 'nowhere'",
        "exp.yaml:15:31: callbacks[1]: fake_algorithm:CONSTANT is not callable: it is of type int",
        "exp.yaml:16:18: report.sinks[0]: expected console, jsonl, csv, tensorboard, "
        "wandb, mlflow or "
        "\"package.module:attribute\", got 'consol' - did you mean console?",
        "<command line>: expected KEY=VALUE, such as training.lr=1e-3, got 'nope'",
        "<command line>: training.clip: expected a number or schedule, got the text 'x'",
        "<command line>: trainin: unknown top-level key - did you mean training?",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {lr: []}", "training.lr: a schedule needs at least one"),
        (
            "training: {lr: [[5, 1]]}",
            "training.lr[0][0]: a schedule starts at env step 0, not at 5",
        ),
        ("training: {lr: [[0, 1], [9, 1], [9, 0]]}", "training.lr[2][0]: env steps must rise: 9"),
        ("training: {lr: [[0, 1, 2]]}", "training.lr[0]: expected a pair [env_steps, value]"),
        (
            "training: {lr: [[0, true]]}",
            "training.lr[0][1]: expected a number from 0 to 10, got true",
        ),
        ("training: {lr: true}", "training.lr: expected a number or schedule"),
        (
            "training: {lr: {kind: [1], start: 1}}",
            "training.lr.kind: expected kind: cosine or kind: exponential or",
        ),
        ("model: {kwargs: {hidden: [8]}}", "model: kwargs are arguments of the code that `use`"),
        ("multi_agent: {policies: {a: {kwargs: {n: 1}}}}", "policies.a: kwargs are arguments of"),
        ("training: {gamma: .nan}", "training.gamma: expected a number from 0 to 1"),
        (
            "training: {gamma: 1.5}",
            "training.gamma: expected a number from 0 to 1",
        ),
        ("training: 3", "training: expected keys and values, got 3"),
        ("model: [1]", "model: expected keys and values, got [1]"),
        ("model: {conv: [[1, 2]]}", "model.conv[0][2]: missing"),
        ("model: {conv: [[1, 2, x]]}", "model.conv[0][2]: expected a whole number"),
        ("seed: -1", "seed: expected a whole number of at least 0 or null, got -1"),
        ("seed: 9223372036854775808", "seed: expected a number below 9,223,372,036,854,775,808"),
        ("seed: 1.5", "seed: expected a whole number of at least 0 or null, got 1.5"),
        (f"seed: {'1 ' * 500}1", f"or null, got the text '{'1 ' * 38}'..."),
        ("name: a/b", "name: expected text of the form"),
        ("callbacks: fake_algorithm:Callback", "callbacks: expected a list"),
        ("learners: {device: gpu}", "learners.device: expected text of the form"),
        (
            "connectors: {clip_rewards: x}",
            "connectors.clip_rewards: expected true or false, a number",
        ),
    ],
)
def test_wrong_values(write, text, message):
    (line,) = errors(write(text))
    assert line.startswith("exp.yaml:4:")
    assert message in line


def test_missing_keys_are_named(write):
    lines = errors(write("seed: 1", minimal=False))
    assert lines == [
        "exp.yaml:1:1: algorithm: missing; it has no default",
        "exp.yaml:1:1: env: missing; it has no default",
    ]


def test_numbers_of_the_file_reach_the_fields(write):
    experiment = load_experiment(
        write(
            "training: {train_batch_size: 8e3, lr: 1e-4, clip: [[0, 1], [1e6, 0]]}\nmodel: {hidden: []}"
        )
    )
    assert experiment.training.train_batch_size == 8000
    assert isinstance(experiment.training.train_batch_size, int)
    assert experiment.training.lr == 1e-4
    assert experiment.training.clip == ((0, 1.0), (1_000_000, 0.0))
    assert experiment.model.hidden == ()


def test_an_empty_section_is_its_defaults(write):
    experiment = load_experiment(write("training:\nmodel:\ncallbacks: []"))
    assert experiment.training.num_epochs == 4
    assert experiment.model.hidden == (64, 64)


def test_an_empty_section_hides_no_problem_of_another(write):
    lines = errors(write("sead: 3\nmodel:\nreport: {sinks: [consol]}"))
    assert ["sead" in lines[0], "report.sinks[0]" in lines[1]] == [True, True]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "the file is empty"), ("- a", "expected keys and values"), ("3", "expected keys")],
)
def test_a_file_without_keys(write, text, message):
    (line,) = errors(write(text, minimal=False))
    assert line.startswith("exp.yaml:1:1: ")
    assert message in line


def test_a_missing_file_a_folder_and_a_binary(write, tmp_path):
    assert errors(Path("nix.yaml")) == ["nix.yaml: there is no such file"]
    (tmp_path / "sac_ants.yaml").touch()
    missing = tmp_path / "sac_ant.yaml"
    hint = f"did you mean {tmp_path / 'sac_ants.yaml'}?"
    assert errors(missing) == [f"{missing}: there is no such file - {hint}"]
    (line,) = errors(Path("ppo_cartpol"))
    assert line.endswith("did you mean ppo/cartpole?")
    assert "cannot be read" in errors(tmp_path)[0]
    Path("b.yaml").write_bytes(b"a: \xff\xfe")
    assert errors(Path("b.yaml")) == ["b.yaml: not a text file: byte 3 is not UTF-8"]


def test_shipped_files_are_known_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = load_experiment("ppo/cartpole", ["seed=3"])
    assert named == load_experiment(configs_folder() / "ppo_cartpole.yaml", ["seed=3"])
    Path("ppo_cartpole").write_text(
        "algorithm: PPO\nenv: Acrobot-v1"
    )  # a file of one's own goes first
    assert load_experiment("ppo_cartpole") != load_experiment("ppo/cartpole")


def _choose(agent, episode, fraction=1.0):
    return "a"


class TestBase:
    def test_is_relative_to_the_file_and_laid_below_it(self, write):
        write("training: {lr: 1, num_epochs: 2}\nname: below", "deep/base.yaml")
        write("base: base.yaml\ntraining: {num_epochs: 3}", "deep/mid.yaml", minimal=False)
        file = write(
            "base: deep/mid.yaml\nseed: 5\nstop: {env_steps: null, time_s: 9}", minimal=False
        )
        loaded = load(file, ["training.gamma=0.5"])
        experiment = loaded.experiment
        assert (experiment.training.lr, experiment.training.num_epochs) == (1.0, 3)
        assert (experiment.seed, experiment.name) == (5, "below")
        assert experiment.stop == {"time_s": 9}
        assert str(loaded.origin(("training", "lr"))) == "deep/base.yaml:4:12"
        assert str(loaded.origin(("training", "num_epochs"))) == "deep/mid.yaml:2:12"
        assert str(loaded.origin(("seed",))) == "exp.yaml:2:1"
        assert str(loaded.origin(("training", "gamma"))) == "<command line>"
        assert str(loaded.origin(("training", "clip"))) == "default"
        assert str(loaded.origin(("env", "use"))) == "deep/base.yaml:2:1"

    def test_errors_point_into_the_base(self, write):
        write("sed: 1", "b.yaml")
        assert errors(write("base: b.yaml", minimal=False))[0].startswith("b.yaml:4:1: sed: ")

    def test_cycles_are_refused(self, write):
        write("base: exp.yaml", "b.yaml", minimal=False)
        (line,) = errors(write("base: b.yaml"))
        assert line == ("b.yaml:1:1: base: the files form a cycle: exp.yaml -> b.yaml -> exp.yaml")

    def test_a_file_cannot_be_its_own_base(self, write):
        assert "exp.yaml -> exp.yaml" in errors(write("base: exp.yaml"))[0]

    def test_missing_and_wrong_base(self, write):
        assert errors(write("base: no.yaml")) == ["exp.yaml:4:1: base: there is no file no.yaml"]
        assert "expected the name of one file" in errors(write("base: [a]"))[0]
        assert errors(write(), ["base=x.yaml"]) == [
            "<command line>: base: only a file can name its base"
        ]

    def test_another_use_replaces_the_arguments(self, write):
        base = "env: {use: fake_algorithm:Maze, size: 3}\nalgorithm: fake_algorithm:Fake\n"
        write(base, "b.yaml", minimal=False)
        same = load_experiment(write("base: b.yaml\nenv: {walls: 1}", minimal=False))
        assert same.env.kwargs == {"size": 3, "walls": 1}
        other = load_experiment(write("base: b.yaml\nenv: {use: Acrobot-v1}", minimal=False))
        assert (other.env.use, other.env.kwargs) == ("Acrobot-v1", {})

    def test_code_replaces_a_table_of_agents_which_does_not_replace_code(self, write):
        code, table = f"{{use: '{__name__}:_choose', fraction: 0.5}}", "{agent_0: a}"
        env = "rlrun.envs.multi_agent_examples:MultiAgentCartPole"
        head = f"algorithm: PPO\nenv: {env}\nmulti_agent: {{policies: [a], agents: %s}}\n"
        file = write(head % table, minimal=False)
        found = load_experiment(file, [f"multi_agent.agents={code}"]).multi_agent.agents
        assert found == {"use": f"{__name__}:_choose", "fraction": 0.5}
        file = write(head % code, minimal=False)
        (error,) = errors(file, [f"multi_agent.agents={table}"])
        assert error.endswith("takes fraction; set multi_agent.agents=null first to write a table")
        words = ["multi_agent.agents=null", f"multi_agent.agents={table}"]
        assert load_experiment(file, words).multi_agent.agents == {"agent_0": "a"}

    @pytest.mark.parametrize("words", [(), ("training.lr=%s",), ("training={lr: %s}",)])
    def test_a_schedule_of_another_kind_replaces_the_whole(self, write, words):
        power = "{kind: polynomial, start: 1e-3, end: 0, env_steps: 1e4, power: 2}"
        other = "{kind: exponential, start: 1e-3, end: 1e-4, env_steps: 1e4}"
        write(f"training: {{lr: {power}}}", "b.yaml")
        file = write("base: b.yaml" + ("" if words else f"\ntraining: {{lr: {other}}}"))
        lr = load_experiment(file, [word % other for word in words]).training.lr
        assert (lr.kind, lr.power) == ("exponential", 1.0)
        assert load_experiment(file, ["training.lr.end=1e-5"]).training.lr.end == 1e-5

    def test_arguments_that_are_named_kind_are_none_of_a_schedule(self, write):
        file = write("callbacks: [{use: fake_algorithm:Callback, every: {kind: a, n: 1}}]")
        for address in ("callbacks.0.every.kind", "callbacks[0].every.kind"):
            (callback,) = load_experiment(file, [f"{address}=b"]).callbacks
            assert callback.kwargs == {"every": {"kind": "b", "n": 1}}


class TestOverrides:
    def test_values_are_yaml_and_split_at_the_first_equals_sign(self, write):
        experiment = load_experiment(
            write("callbacks: [fake_algorithm:Callback]"),
            [
                "training.lr=[[0, 1e-3], [1e6, 0]]",
                "training/clip=1e-1",
                "env={use: fake_algorithm:Maze, size: 3}",
                "env.walls=2",
                "stop.evaluation/episode_return_mean=-150",
                "evaluation.interval=2",
                "seed=",
                "checkpoint.keep=null",
                "name=a",
                "name=b",
                "callbacks.0.every=7",
                "model.hidden=[8, 8]",
                "model.hidden.1=16",
                "report.sinks=[jsonl, 'fake_algorithm:Callback']",
                "report.sinks.1.every=5",
                "stop.env_runners.x=1",
                "stop.env_runners/x.y=2",
            ],
        )
        assert experiment.training.lr == ((0, 1e-3), (1_000_000, 0.0))
        assert experiment.training.clip == 0.1
        assert experiment.env.kwargs == {"size": 3, "walls": 2}
        assert experiment.stop["evaluation/episode_return_mean"] == -150
        assert experiment.stop["env_runners/x"] == 1
        assert experiment.stop["env_runners/x.y"] == 2
        assert experiment.seed is None
        assert experiment.checkpoint.keep is None
        assert experiment.name == "b"
        assert experiment.callbacks[0].kwargs == {"every": 7}
        assert experiment.model.hidden == (8, 16)
        assert experiment.report.sinks[1].kwargs == {"every": 5}

    def test_text_may_hold_equals_signs(self, write):
        (line,) = errors(write(), ["env=a=b"])
        assert line.startswith("<command line>: env.use: ")
        assert "'a=b'" in line

    def test_arguments_join_a_short_env(self, write):
        experiment = load_experiment(write(), ["env.sutton_barto_reward=true"])
        assert experiment.env.use == "CartPole-v1"
        assert experiment.env.kwargs == {"sutton_barto_reward": True}

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("training.lr", "expected KEY=VALUE, such as training.lr=1e-3, got 'training.lr'"),
            ("=3", "expected KEY=VALUE"),
            ("training..lr=3", "expected KEY=VALUE"),
            ("seed=[", "seed: not valid YAML"),
            ("training={lr: 1, lr: 2}", "lr: duplicate key"),
            ("seed.x=1", "seed: expected a whole number"),
            ("callbacks.3.every=1", "callbacks.3.every: '3' is not a position in a list of 1"),
            ("callbacks.².every=1", "callbacks.².every: '²' is not a position in a list of 1"),
            ("env_runners.num_workers=2", "retired; use env_runners.num_env_runners"),
            ("use_gae=true", "use_gae: retired; advantages are always estimated by GAE"),
        ],
    )
    def test_errors_name_the_override(self, write, override, message):
        (line,) = errors(write("callbacks: [fake_algorithm:Callback]"), [override])
        assert line.startswith("<command line>: ")
        assert message in line

    def test_one_text_in_place_of_a_list_is_refused(self, write):
        with pytest.raises(TypeError, match=r"a list of KEY=VALUE texts, such as \['seed=2'\]"):
            load_experiment(write(), "seed=2")


@pytest.mark.parametrize("name", ["RecurrentPPO", "MaskablePPO", "C51", "R2D2"])
def test_an_algorithm_of_another_library_is_answered_with_what_it_is_here(name):
    (line,) = errors(None, [f"algorithm={name}", "env=CartPole-v1"])
    assert line.startswith(f"<command line>: algorithm: {name} is ")


def test_an_unknown_algorithm_hides_no_other_problem(write):
    text = """\
algorithm: PPOO
env: CartPole-v1
stop: {env_stepz: 100}
env_runners: {soft_horizon: true}
model: {distribution: beta}
training: {lr: x, num_epochss: 3}
evaluation: {parallel_to_training: true}
"""
    found = errors(write(text, minimal=False))
    assert [line.removeprefix("exp.yaml:").partition(" - did")[0][:80] for line in found] == [
        "1:1: algorithm: there is no algorithm 'PPOO'; choose from PPO, A2C, A3C, APPO, I",
        "3:8: stop.env_stepz: no result has the key env_stepz",
        "4:15: env_runners.soft_horizon: there is no horizon; set env_runners.horizon, or",
        "6:12: training.lr: expected a number or schedule from 0 to 10, got the text 'x'",
        "7:14: evaluation.parallel_to_training: one process cannot train and evaluate at ",
    ]
    own = errors(write(text.replace("PPOO", "fake_algorithm:Fakes"), minimal=False))
    assert [line.split(": ")[1] for line in own] == [
        "algorithm",  # which may have reported any key
        "env_runners.soft_horizon",
        "training.lr",
        "evaluation.parallel_to_training",
    ]


def test_a_name_with_dots_is_answered_with_the_import_path(write):
    found = errors(
        write("algorithm: fake_algorithm.Fake\nenv: fake_algorithm.Maze\n", minimal=False)
    )
    assert [line.partition(" - ")[2] for line in found] == [
        "did you mean fake_algorithm:Fake?",
        "did you mean fake_algorithm:Maze?",
    ]


def test_without_a_file(write):
    words = ["algorithm=fake_algorithm:Fake", "env=CartPole-v1", "training.num_epochs=2", "seed=3"]
    experiment = load_experiment(None, words)
    assert (experiment.seed, experiment.training.num_epochs) == (3, 2)
    assert experiment.name == "fake_cartpole-v1"
    known = ", ".join(ALGORITHMS)
    assert errors(None, ["algorithm=PP", "env=CartPole-v1"])[0].startswith(
        f"<command line>: algorithm: there is no algorithm 'PP'; choose from {known} - "
        "did you mean PPO?"
    )


def test_an_experiment_is_frozen(write):
    experiment = load_experiment(write())
    with pytest.raises(ValueError, match="frozen"):
        experiment.training.lr = 3  # type: ignore[misc]
