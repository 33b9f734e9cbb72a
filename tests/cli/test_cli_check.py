"""`rlrun check`, `list`, `init` and `--help`."""

import json
import re
from pathlib import Path

import pytest
from torch import nn

from rlrun import RLModule
from rlrun.cli.main import COMMANDS
from rlrun.config.loader import load_experiment
from rlrun.config.registry import configs_folder

NOT_NESTED = "add_default_connectors_to_module_to_env_pipeline"
GOOD = "algorithm: PPO\nenv: CartPole-v1\nstop: {env_steps: 1e5}\n"


def test_a_right_file(rlrun):
    Path("a.yaml").write_text(GOOD)
    assert rlrun("check", "a.yaml") == (0, "a.yaml: ok, PPO on CartPole-v1\n", "")


def test_the_memory_of_replay_is_told(rlrun):
    Path("a.yaml").write_text(GOOD.replace("PPO", "DQN") + "replay: {capacity: 1e6}\n")
    code, out, _ = rlrun("check", "a.yaml")
    assert (code, out) == (0, "a.yaml: ok, DQN on CartPole-v1, replay of at least 72 MB\n")
    assert json.loads(rlrun("check", "a.yaml", "--json")[1])[0]["replay_bytes"] == 72_000_000


def test_every_point_of_a_group_is_checked(rlrun):
    Path("a.yaml").write_text(GOOD)
    sizes = ["training.train_batch_size=1000,4000", "training.minibatch_size=500,2000"]
    code, _, err = rlrun("check", "a.yaml", *sizes)
    assert code == 2
    assert "with train_batch_size=1000 minibatch_size=2000: a minibatch of 2000 rows" in err


def test_every_point_of_a_sweep_is_checked(rlrun):
    batch, minibatch = "{grid: [1000, 4000]}", "{grid: [500, 2000]}"
    space = f"{{training.train_batch_size: {batch}, training.minibatch_size: {minibatch}}}"
    Path("a.yaml").write_text(f"{GOOD}sweep: {{space: {space}}}\n")
    code, _, err = rlrun("check", "a.yaml")
    assert code == 2
    assert "with train_batch_size=1000 minibatch_size=2000: a minibatch of 2000 rows" in err


def test_a_run_folder_is_checked_by_its_config(rlrun):
    Path("runs/r").mkdir(parents=True)
    Path("runs/r/config.yaml").write_text(GOOD)
    assert rlrun("check", "runs/r") == (0, "runs/r/config.yaml: ok, PPO on CartPole-v1\n", "")


def test_a_folder_stands_for_its_yaml_files(rlrun):
    Path("mine/deeper").mkdir(parents=True)
    for name in ("b.yaml", "a.yml", "notes.txt", "deeper/c.yaml"):
        Path("mine", name).write_text(GOOD)
    code, out, err = rlrun("check", "mine")
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == ["mine/a.yml", "mine/b.yaml"]
    Path("mine/a.yml").write_text(GOOD + "sed: 1")
    code, out, err = rlrun("check", "mine")
    assert (code, out.split(":")[0]) == (2, "mine/b.yaml")
    assert err.startswith("mine/a.yml:4:1: sed: unknown top-level key")
    assert rlrun("check", "mine/deeper", "mine")[0] == 2
    Path("empty").mkdir()
    assert rlrun("check", "empty")[:2] == (2, "")


def test_json_has_the_problems_and_warnings_of_each_file(rlrun, refused):
    Path("a.yaml").write_text(GOOD.replace("1e5", "10"))
    Path("b.yaml").write_text(GOOD + "sed: 1")
    Path("c.yaml").write_text(GOOD.replace("CartPole-v1", f"{__name__}:fails"))
    code, out, _ = rlrun("check", "--json", "a.yaml", "b.yaml", "c.yaml")
    right, wrong, failing = json.loads(out)
    assert code == 2
    assert (right["file"], right["problems"]) == ("a.yaml", [])
    (warning,) = right["warnings"]
    assert warning["key"] == "stop.env_steps"
    (problem,) = wrong["problems"]
    assert problem["origin"] == {"source": "b.yaml", "line": 4, "column": 1}
    assert problem["key"] == "sed"
    assert problem["message"].startswith("unknown top-level key")
    assert failing["problems"][0]["message"].startswith("EnvError: ")
    assert [rlrun("check", "--json", file)[0] for file in ("a.yaml", "c.yaml")] == [0, 1]
    refused(("check", "--json", "--show", "a.yaml"), "leave out either --show or --json")


def fails():
    raise ValueError("an environment that cannot be made")


def test_errors_of_all_files_and_overrides(rlrun):
    Path("a.yaml").write_text(GOOD + "sed: 1")
    Path("b.yaml").write_text(GOOD + "training: {lr: x}")
    code, out, err = rlrun("check", "a.yaml", "b.yaml", "c.yaml", "mdel.hidden=3")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "a.yaml:4:1: sed: unknown top-level key - did you mean seed?",
        "<command line>: mdel: unknown top-level key - did you mean model?",
        "b.yaml:4:12: training.lr: expected a number or schedule from 0 to 10, got the text 'x'",
        "c.yaml: there is no such file",
        "4 problems",
    ]


def test_lines_are_not_wrapped_and_markup_is_text(rlrun):
    Path("a.yaml").write_text(GOOD + f"'[red]{'x' * 300}': 1")
    _, _, err = rlrun("check", "a.yaml")
    assert err.splitlines()[0].startswith("a.yaml:4:1: [red]xxx")
    assert len(err.splitlines()) == 2


def test_algorithm_checks_run(rlrun):
    Path("a.yaml").write_text(GOOD)
    code, _, err = rlrun(
        "check", "a.yaml", "training.train_batch_size=2047", "env_runners.num_envs_per_env_runner=8"
    )
    assert code == 2
    assert "training.train_batch_size: 2047 cannot be met exactly" in err


@pytest.mark.parametrize(
    "word",
    [
        "env.use=" + "x" * 5_000,
        "x" * 5_000,
        "a\0b.yaml",
        "env=a\0b",
        "a" * 300 + "=1",
        ".".join("a" * 1_500) + "=1",
        "model=" + "[" * 1_500 + "]" * 1_500,
        "model=" + "{a: " * 200 + "1" + "}" * 200,
        "seed=" + "9" * 400,
        "stop.env_steps=" + "9" * 5_000,
        "training.lr=[[0, 1], [" + "9" * 400 + ", 2]]",
        "training.lr=[[.nan, 1]]",
        "sweep.space={training.lr: {uniform: [0, " + "9" * 400 + "]}}",
        "multi_agent={policies: [a], agents: {use: 1}}",
        "multi_agent={policies: [a], agents: {use: 'os:getcwd', kwargs: 3}}",
    ],
    ids=range(15),
)
def test_no_word_is_too_strange_for_a_message(rlrun, word):
    Path("a.yaml").write_text(GOOD)
    code, _, err = rlrun("check", "a.yaml", word)
    assert code == 2
    assert err.splitlines()[-1].endswith(("1 problem", "2 problems"))
    assert "Traceback" not in err


@pytest.mark.parametrize("text", ["base: 'BASE'".replace("BASE", "b" * 5_000), 'base: "a\\0b"'])
def test_a_base_that_no_system_could_hold(rlrun, text):
    Path("a.yaml").write_text(GOOD + text)
    code, _, err = rlrun("check", "a.yaml")
    assert code == 2
    assert "base: there is no file" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["algorithm=DQN", "env=Pendulum-v1"], "need a Discrete action space"),
        (["multi_agent.policies=[a]"], "CartPole-v1 has one agent"),
        (["model.conv=[[3, 3, 1]]"], "model.conv: convolutions need 2-D, 3-D or 4-D observations"),
        (
            [
                "env=MultiAgentCartPole",
                "multi_agent.policies=[a]",
                "env_runners.sample_collector=rlrun.sampling.columnar_collector:ColumnarCollector",
            ],
            "needs slots that all act together",
        ),
    ],
)
def test_what_the_environment_contradicts_is_found(rlrun, words, says):
    Path("a.yaml").write_text(GOOD)
    code, _, err = rlrun("check", "a.yaml", *words)
    assert code == 2
    assert err.startswith("<command line>: ")
    assert says in err


class WrongWidth(nn.Module):
    output_size = 8

    def __init__(self, space, inputs=4):
        super().__init__()
        self.linear = nn.Linear(inputs, 8)

    def forward(self, obs):
        return self.linear(obs)


@pytest.mark.parametrize(("inputs", "code"), [(4, 0), (5, 2)])
def test_a_network_that_cannot_take_an_observation_is_found(rlrun, inputs, code):
    model = f"model:\n  inputs: {inputs}\n  use: {__name__}:WrongWidth\n"
    Path("a.yaml").write_text(GOOD + model)
    found, _, err = rlrun("check", "a.yaml")
    assert found == code
    if code:
        assert err.startswith("a.yaml:6:3: model.use: ")
        assert "WrongWidth fails for an observation of Box(" in err
        assert "shapes cannot be multiplied (1x4 and 5x8)" in err


class ThreeLogits(RLModule):
    def forward_train(self, batch):
        return {"action_dist_inputs": batch["obs"][:, :3]}


def test_a_network_with_the_wrong_number_of_outputs_is_found(rlrun):
    Path("a.yaml").write_text(GOOD + f"model:\n  use: {__name__}:ThreeLogits\n")
    code, _, err = rlrun("check", "a.yaml")
    assert code == 2
    assert "ThreeLogits fails for an observation of Box(" in err
    assert "(1,3) (1,2)" in err


def test_what_train_refuses_on_this_machine_is_found(rlrun):
    Path("a.yaml").write_text(GOOD)
    words = ["env_runners.num_env_runners=512", "learners.device=cuda:99"]
    code, out, err = rlrun("check", "a.yaml", *words)
    assert (code, out) == (2, "")
    assert "512 env runners with 1 CPUs each need 512 CPUs" in err
    assert "<command line>: learners.device: 'cuda:99' asked for" in err


class NoModelNorCallback:
    pass


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("model.use=@", "model.use: @ is a subclass of neither rlrun.RLModule nor torch.nn.Module"),
        ("callbacks=[{use: '@'}]", "callbacks[0]: @ is not a subclass of rlrun.Callbacks"),
    ],
)
@pytest.mark.parametrize("command", ["check", "train"])
def test_code_that_is_none_of_its_kind_is_one_line(rlrun, command, word, says):
    Path("a.yaml").write_text(GOOD)
    code, _, err = rlrun(command, "a.yaml", word.replace("@", f"{__name__}:NoModelNorCallback"))
    assert code == 2
    assert f"<command line>: {says}".replace("@", f"{__name__}:NoModelNorCallback") in err
    assert "Traceback" not in err
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_run_is_named_after_the_environment_that_takes_the_place_of_the_files(rlrun):
    Path("a.yaml").write_text(GOOD)
    show = ("check", "a.yaml", "--show")
    assert "\nname: a " in "\n" + rlrun(*show)[1]
    assert "\nname: a " in "\n" + rlrun(*show, "env=CartPole-v1")[1]
    assert "\nname: ppo_acrobot-v1 " in "\n" + rlrun(*show, "env=Acrobot-v1")[1]
    assert "\nname: mine " in "\n" + rlrun(*show, "env=Acrobot-v1", "name=mine")[1]


def test_missing_code_of_a_run_is_looked_for_where_the_run_began(rlrun):
    Path("run").mkdir()
    Path("run/config.yaml").write_text("algorithm: PPO\nenv: not_there:Maze\n")
    Path("run/meta.json").write_text('{"sessions": [{"cwd": "/its/folder"}]}')
    code, _, err = rlrun("rerun", "run", "--trust")
    assert code == 2
    assert "there is no module 'not_there' in " in err
    assert "the run was started in /its/folder; start it there" in err


def test_code_that_fails_when_it_is_built_does_not_hide_other_files(rlrun):
    Path("a.yaml").write_text(GOOD)
    wrapper = "{use: FilterObservation, filter_keys: [a]}"
    Path("b.yaml").write_text(f"{GOOD}env_runners: {{env_wrappers: [{wrapper}]}}\n")
    code, out, err = rlrun("check", "b.yaml", "a.yaml")
    assert (code, out) == (1, "a.yaml: ok, PPO on CartPole-v1\n")
    assert "raised by the wrapper FilterObservation" in err
    assert err.splitlines()[-1] == "b.yaml: failed: EnvError"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (["env=MultiAgentCartPole"], "multi_agent"),
        (["model.value_hidden=[8]", "algorithm=DQN"], "model.value_hidden"),
        (["model.head_hidden=[8]", "algorithm=DQN"], "model.head_hidden"),
        (["model.head_hidden=[8]", "algorithm=SAC"], "model.head_hidden"),
        (["model.privileged=[x]", "algorithm=DQN"], "model.privileged"),
        (
            ["env_runners.gym_env_vectorize_mode=vector_entry_point", "env_runners.horizon=9"],
            "env_runners.horizon",
        ),
        (
            ["env=counting_envs:NestedCounter", f"env_runners.{NOT_NESTED}=false"],
            f"env_runners.{NOT_NESTED}",
        ),
    ],
)
def test_settings_that_do_not_fit_the_environment_have_exit_code_2(rlrun, settings, key):
    Path("a.yaml").write_text(GOOD)
    code, _, err = rlrun("check", "a.yaml", *settings)
    assert code == 2
    assert f": {key}: " in err


def test_warnings_do_not_fail(rlrun):
    Path("a.yaml").write_text(GOOD)
    code, out, err = rlrun("check", "a.yaml", "stop.env_steps=10")
    assert code == 0
    assert out == "a.yaml: ok, PPO on CartPole-v1\n"
    assert err.startswith("warning: <command line>: stop.env_steps: 10 env steps are less than one")


def test_show_is_a_valid_file_with_origins(rlrun):
    Path("a.yaml").write_text(GOOD)
    code, out, _ = rlrun("check", "a.yaml", "--show", "training.lr=1e-3")
    assert code == 0
    assert "# <command line>" in out
    assert "# a.yaml:2:1" in out
    Path("shown.yaml").write_text(out)
    assert load_experiment("shown.yaml") == load_experiment("a.yaml", ["training.lr=1e-3"])


@pytest.mark.parametrize(
    "arguments",
    [["nope"], ["check"], ["check", "--shw"], ["check", "a=b"], ["list", "nothing"], ["list"], []],
)
def test_bad_usage_ends_with_2(rlrun, arguments):
    assert rlrun(*arguments)[0] == 2


def test_init_is_a_valid_file(rlrun):
    code, out, err = rlrun("init", "PPO", "Acrobot-v1")
    assert (code, err) == (0, "")
    Path("mine.yaml").write_text(out)
    assert load_experiment("mine.yaml").env.use == "Acrobot-v1"
    assert rlrun("check", "mine.yaml")[::2] == (0, "")


def test_init_for_several_agents_lets_them_share_a_policy(rlrun):
    code, out, err = rlrun("init", "DQN", "TakeTurns")
    assert (code, err) == (0, "")
    Path("mine.yaml").write_text(out)
    assert list(load_experiment("mine.yaml").multi_agent.policies) == ["shared"]
    assert rlrun("check", "mine.yaml")[::2] == (0, "")


def test_an_unknown_command_gets_the_nearest_one(refused):
    refused(["trian", "a.yaml"], "there is no command 'trian' - did you mean train?")


def test_init_of_unknown_names(rlrun):
    code, out, err = rlrun("init", "PP0", "CartPole-v1")
    assert (code, out) == (2, "")
    assert "did you mean PPO?" in err
    assert "did you mean CartPole-v1?" in rlrun("init", "PPO", "CartPol-v1")[2]


def test_init_of_an_algorithm_that_cannot_act_in_the_environment(rlrun):
    code, out, err = rlrun("init", "DQN", "Pendulum-v1")
    assert (code, out) == (2, "")
    assert "action values need a Discrete action space" in err
    assert "PPO also acts in Box" in err


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("algorithms", "PPO "),
        ("envs", "CartPole-v1 "),
        ("envs", "RockPaperScissors "),
        ("models", "ActorCritic "),
    ],
)
def test_list(rlrun, kind, name):
    code, out, _ = rlrun("list", kind)
    assert code == 0
    assert any(line.startswith(name) for line in out.splitlines())


def test_list_configs_is_a_table_of_the_folder_here_and_the_shipped_ones(rlrun):
    Path("configs").mkdir()
    header = "# reached: 3 of 4\n# time: 2 min\n"
    Path("configs/a.yaml").write_text(f"{header}algorithm: PPO\nenv: {{use: Maze-v0, size: 3}}")
    Path("configs/b.yaml").write_text("algorithm: [")
    code, out, _ = rlrun("list", "configs")
    rows = [re.split("  +", line.strip()) for line in out.splitlines()]
    assert code == 0
    assert rows[:3] == [
        ["CONFIG", "ALGORITHM", "ENVIRONMENT", "REACHED", "TIME"],
        ["configs/a.yaml", "PPO", "Maze-v0", "3 of 4", "2 min"],
        ["configs/b.yaml"],
    ]
    assert ["ppo/cartpole", "PPO", "CartPole-v1"] in [row[:3] for row in rows]


def test_init_writes_out_a_shipped_file(rlrun):
    code, out, _ = rlrun("init", "ppo/cartpole")
    assert (code, out) == (0, (configs_folder() / "ppo_cartpole.yaml").read_text())
    assert rlrun("init", "ppo_cartpole")[1] == out
    assert "remove Acrobot-v1" in rlrun("init", "ppo/cartpole", "Acrobot-v1")[2]
    code, _, err = rlrun("init", "ppo/cartpol")
    assert (code, err.count("did you mean ppo/cartpole?")) == (2, 1)


def test_help_names_every_command_and_version_prints_it(rlrun):
    code, out, _ = rlrun("--help")
    assert code == 0
    assert all(f"  {name}" in out for name in COMMANDS)
    assert rlrun("--version")[1].startswith("rlrun ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_loads_and_has_help(rlrun, command):
    code, out, _ = rlrun(command, "--help")
    assert code == 0
    assert f"rlrun {command}" in out
