"""Callbacks are called where they say, with what they say."""

import re
import threading
from collections import Counter
from itertools import product

import gymnasium as gym
import numpy as np
import pytest
import tiny
from tiny import flat, learner_stats

from rlrun.algorithms.callbacks import Callbacks
from rlrun.algorithms.ppo import PPOConfig
from rlrun.config.problems import ConfigError
from rlrun.data import columns as col
from rlrun.data.results import plain_row
from rlrun.data.seeding import Role, generators_seed, seeded_generators
from rlrun.envs.errors import EnvError
from rlrun.envs.multi_agent_env import MultiAgentEnv, make_multi_agent

calls = Counter()


class Recording(Callbacks):
    def __init__(self, bonus=0.0):
        self.bonus = bonus

    def on_algorithm_init(self, algorithm):
        calls["init"] += 1

    def on_create_policy(self, algorithm, policy_id):
        calls[f"create {policy_id}"] += 1

    def on_learn_on_batch(self, algorithm, policy_id, batch):
        calls[f"learn {policy_id}"] += len(batch)

    def on_episode_end(self, algorithm, episode):
        calls["episode"] += 1
        episode.custom_metrics["doubled"] = 2.0 * episode.length

    def on_sample_end(self, env_runner, samples):
        calls["rows"] += len(samples)
        samples[col.REWARDS] = samples[col.REWARDS] + self.bonus

    def on_train_result(self, algorithm, result):
        calls["result"] += 1
        result["mine"] = {"answer": 42}

    def on_evaluate_start(self, algorithm):
        calls["evaluate_start"] += 1

    def on_evaluate_end(self, algorithm, evaluation):
        calls["evaluated_episodes"] += evaluation["episodes"]

    def on_checkpoint_loaded(self, algorithm):
        calls["loaded"] += 1

    def on_env_runners_recreated(self, algorithm, num_recreated):
        calls["recreated"] += num_recreated


def recorded(built, bonus=0.0):
    config = PPOConfig().callbacks({"use": f"{__name__}:Recording", "bonus": bonus})
    config = config.training(train_batch_size=100, minibatch_size=100, num_epochs=1)
    config = config.environment("CartPole-v1").evaluation(interval=2, episodes=3)
    return built(config.debugging(seed=0))


def test_each_callback_is_called_at_its_point_of_the_run(built):
    calls.clear()
    algorithm = recorded(built)
    results = [algorithm.train() for _ in range(2)]
    algorithm.set_state(algorithm.get_state())
    algorithm.after_restore()
    assert all(result["mine"]["answer"] == 42 for result in results)
    assert calls == {
        "create default_policy": 1,
        "learn default_policy": 200,
        "init": 1,
        "episode": results[-1]["episodes"],
        "rows": 200,
        "result": 2,
        "evaluate_start": 1,
        "evaluated_episodes": 3,
        "loaded": 1,
    }


class Growing(Callbacks):
    """Keeps the list that it is given, in the algorithm and in its env runner."""

    def __init__(self, seen):
        self.seen = seen

    def on_episode_start(self, env_runner, episode):
        self.seen.append("episode")

    def on_train_result(self, algorithm, result):
        assert self.seen == ["file"], "each has its own"


def test_arguments_are_copies_that_callbacks_may_change(built):
    config = PPOConfig().environment("CartPole-v1")
    config = config.callbacks({"use": f"{__name__}:Growing", "seen": ["file"]})
    algorithm = built(config.training(train_batch_size=100, minibatch_size=100))
    algorithm.train()
    assert algorithm.config.callbacks[0].kwargs == {"seen": ["file"]}


class RefusesCheckpoints(Callbacks):
    def on_checkpoint_loaded(self, algorithm):
        raise KeyError("of mine")


def test_what_a_callback_raises_when_a_checkpoint_is_loaded_is_no_fault_of_the_checkpoint(
    built, tmp_path
):
    algorithm = built(PPOConfig().callbacks(RefusesCheckpoints).environment("CartPole-v1"))
    algorithm.save(tmp_path / "saved")
    with pytest.raises(KeyError, match="of mine"):
        algorithm.restore(tmp_path / "saved")


def test_env_runners_that_were_started_again_in_an_iteration_are_told_of(built, monkeypatch):
    algorithm, restarts = recorded(built), [1, 3]
    calls.clear()
    counted = property(lambda group: restarts.pop(0) if len(restarts) > 1 else restarts[0])
    monkeypatch.setattr(type(algorithm.env_runner_group), "num_restarts", counted)
    for _ in range(2):
        algorithm.train()
    assert calls["recreated"] == 2


def test_what_a_callback_changes_in_the_batch_is_learned_from(built):
    plain, raised = (learner_stats(recorded(built, bonus))["vf_loss"] for bonus in (0.0, 10.0))
    assert raised > 10 * plain


class Metered(gym.Env):
    """Episodes of 3 steps, whose infos count them; the third one says so with text."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

    def __init__(self, broken=False):
        self.broken, self.episode, self.t = broken, 0, 0

    def reset(self, *, seed=None, options=None):
        self.episode, self.t = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        level = "high" if self.broken else float(self.episode)
        info = {"level": level, "t": self.t, "is_success": self.episode % 2 == 0}
        return np.zeros(1, np.float32), 1.0, self.t == 3, False, info


def test_returns_and_lengths_of_the_window_are_lists_where_they_are_asked_for(built):
    config = PPOConfig().environment(f"{__name__}:Metered").evaluation(interval=1, episodes=1)
    config = config.training(train_batch_size=30, minibatch_size=30, num_epochs=1)
    asking = config.copy().reporting(hist_stats=True, smoothing_episodes=4)
    assert "hist_stats" not in built(config).train()
    found = plain_row(built(asking).train())["hist_stats"]
    assert found == {"episode_return": [3.0] * 10, "episode_len": [3] * 10}


def metered(built, interval=1, **env):
    config = PPOConfig().callbacks({"use": f"{__name__}:Recording"})
    config = config.training(train_batch_size=30, minibatch_size=30, num_epochs=1)
    config = config.environment(f"{__name__}:Metered", env_config=env)
    config = config.reporting(info_keys=["level", "t"], smoothing_episodes=20)
    config = config.evaluation(interval=interval, episodes=4)
    return built(config.debugging(seed=0))


def test_numbers_of_infos_and_callbacks_are_reported_and_survive_a_resume(built):
    algorithm, resumed = metered(built), metered(built)
    names = [f"{name}_{kind}" for name in ("level", "t") for kind in ("mean", "min", "max")]
    assert [*resumed.progress.episodes.custom_metrics()] == names
    result = algorithm.train()
    first, evaluation = result["custom_metrics"], result["evaluation"]
    rates = result["env_runners"]["success_rate"], evaluation["success_rate"]
    assert rates == (0.5, 0.25)  # each sub-environment counts by itself
    assert evaluation["custom_metrics"]["t_mean"] == 3.0
    assert first["level_mean"] == first["level_min"] + 4.5 == first["level_max"] - 4.5
    assert (first["t_mean"], first["doubled_mean"]) == (3.0, 6.0)
    resumed.set_state(algorithm.get_state())
    second = resumed.train()
    assert second["custom_metrics"]["level_min"] == first["level_min"]  # of the 20 last episodes
    assert second["custom_metrics"]["doubled_max"] == 6.0
    assert second["agent_steps_this_iter"] == second["agent_steps_trained_this_iter"] == 30
    assert second["agent_steps_trained"] == 60


def test_a_key_that_no_info_has_is_warned_of_once(built, caplog):
    config = PPOConfig().environment(f"{__name__}:Metered")
    config = config.training(train_batch_size=30, minibatch_size=30, num_epochs=1)
    config = config.reporting(info_keys=["t", "tt"], smoothing_episodes=15)
    algorithm = built(config.debugging(seed=0))
    algorithm.train()
    assert "info_keys" not in caplog.text
    for _ in range(2):
        algorithm.train()
    said = "report.info_keys: none of the last infos of 20 episodes has 'tt'"
    assert caplog.text.count("info_keys") == caplog.text.count(said) == 1


def test_an_info_that_is_no_number_is_named(built):
    algorithm = metered(built, broken=True)
    with pytest.raises(
        EnvError, match=r"info\['level'\] is not a number: 'high'; report.info_keys and"
    ):
        algorithm.train()


def test_a_policy_that_is_added_is_told_of(built):
    calls.clear()
    config = PPOConfig().environment("MultiAgentCartPole", num_agents=2)
    config = config.multi_agent(policies=["p"]).callbacks(f"{__name__}:Recording")
    algorithm = built(config)
    algorithm.add_policy("q", like="p")
    assert (calls["create p"], calls["create q"]) == (1, 1)


class Leaving(MultiAgentEnv):
    """Episodes of 3 steps; agent a leaves after the first. Infos say who, and in which step."""

    possible_agents = ("a", "b", "c")
    observation_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(4))
    action_spaces = dict.fromkeys(possible_agents, gym.spaces.Discrete(2))

    def __init__(self, broken=False):
        self.broken, self.t = broken, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return dict.fromkeys(self.possible_agents, 0), {}

    def step(self, actions):
        self.t += 1
        infos = {
            name: {"t": "late" if self.broken else self.t, "is_success": name == "c"}
            for name in actions
        }
        seen, left = dict.fromkeys(actions, self.t), {"a": self.t == 1, "__all__": self.t == 3}
        return seen, dict.fromkeys(actions, 1.0), left, {"__all__": False}, infos


def leaving(built, interval=1, *, info_keys=("t",), window=100, callbacks=None, **env):
    config = PPOConfig().training(train_batch_size=2, minibatch_size=2, num_epochs=1)
    config = config.environment(f"{__name__}:Leaving", env_config=env)
    config = config.multi_agent(policies=["p", "q"], agents={"c": "q", "*": "p"})
    config = config.reporting(info_keys=list(info_keys), smoothing_episodes=window)
    config = config.evaluation(interval=interval, episodes=1)
    config = config if callbacks is None else config.callbacks(callbacks)
    return built(config.debugging(seed=0))


def test_numbers_of_agents_infos_are_reported_by_policy_and_survive_a_resume(built):
    algorithm, resumed = leaving(built), leaving(built)
    names = [f"policy_t_{kind}" for kind in ("mean", "min", "max")]
    first = algorithm.train()  # agent a has left the running episode
    assert first["custom_metrics"] == {name: {"p": None, "q": None} for name in names}
    resumed.set_state(algorithm.get_state())
    for each in (algorithm, resumed):
        result = each.train()
        assert result["custom_metrics"]["policy_t_mean"] == {"p": 2.0, "q": 3.0}
        assert result["custom_metrics"]["policy_t_min"] == {"p": 1.0, "q": 3.0}
        assert result["env_runners"]["policy_success_rate"] == {"p": 0.0, "q": 1.0}
    algorithm.set_state(resumed.get_state())
    assert algorithm.train()["custom_metrics"] == result["custom_metrics"]
    evaluation = first["evaluation"]
    assert evaluation["custom_metrics"]["policy_t_max"] == {"p": 3.0, "q": 3.0}
    assert evaluation["policy_success_rate"] == {"p": 0.0, "q": 1.0}


@pytest.mark.parametrize("make", [metered, leaving])
def test_metrics_that_an_evaluation_brought_are_null_until_the_next_one(built, make, tmp_path):
    algorithm, resumed = make(built, interval=2), make(built, interval=2)
    algorithm.evaluate()  # by hand, which changes no result
    before, brought = (dict(flat(algorithm.train()["evaluation"])) for _ in range(2))
    assert before.keys() < brought.keys()
    algorithm.save(tmp_path / "checkpoint")
    resumed.restore(tmp_path / "checkpoint")
    for each in (algorithm, resumed):
        assert dict(flat(each.train()["evaluation"])) == dict.fromkeys(brought)


class SeesInfos(Callbacks):
    """Counts the infos that come with each step of an episode."""

    def on_episode_step(self, env_runner, episode):
        for name, info in episode.infos.items():
            calls[name, info["t"]] += 1


def test_callbacks_see_the_infos_of_several_agents(built):
    calls.clear()
    algorithm = leaving(built, callbacks=f"{__name__}:SeesInfos")
    algorithm.evaluate()
    steps = [("a", 1), *product("bc", (1, 2, 3))]
    assert calls == dict.fromkeys(steps, 1)


def test_a_key_that_no_agents_info_has_is_warned_of(built, caplog):
    algorithm = leaving(built, info_keys=["t", "tt"], window=2)
    for _ in range(6):
        algorithm.train()
    said = "report.info_keys: none of the last infos of 2 episodes has 'tt'"
    assert caplog.text.count("info_keys") == caplog.text.count(said) == 1


def test_an_agents_info_that_is_no_number_is_named(built):
    with pytest.raises(EnvError, match=r"agent 'a': info\['t'\] is not a number: 'l"):
        leaving(built, broken=True).train()


class Misnamed(Callbacks):
    def on_episod_end(self, algorithm, episode):
        pass


class Old(Callbacks):
    def on_trainer_init(self, algorithm):
        pass


class OfRLlib(Callbacks):
    def on_episode_step(self, *, worker, base_env, episode, **kwargs):
        pass

    def on_postprocess_trajectory(self, episode, batch):
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("OfRLlib", "cannot take its call, on_episode_step(env_runner, episode)"),
        ("OfRLlib", "cannot take its call, on_postprocess_trajectory(worker=..., episode=...,"),
        ("Misnamed", "on_episod_end, which is never called - did you mean on_episode_end?"),
        ("Old", "never called; use on_algorithm_init"),
    ],
)
def test_a_method_that_cannot_be_called_or_never_is_is_refused(name, message):
    config = PPOConfig().environment("CartPole-v1").callbacks(f"{__name__}:{name}")
    with pytest.raises(ConfigError, match=re.escape(message)):
        config.experiment()


class Failing(Callbacks):
    def __init__(self, method):
        setattr(self, method, self.fail)

    def fail(self, *arguments):
        raise OSError("the board is down")


@pytest.mark.parametrize("method", ["on_train_result", "on_episode_end", "on_evaluate_end"])
def test_callbacks_that_fail_to_observe_are_set_aside_once_and_the_run_goes_on(
    built, method, caplog
):
    config = PPOConfig().environment("CartPole-v1").evaluation(interval=1, episodes=1)
    # With this seed an episode ends in the first iteration.
    config = config.debugging(seed=0).training(train_batch_size=400, minibatch_size=100)
    config = config.callbacks(
        {"use": f"{__name__}:Failing", "method": method}, f"{__name__}:Recording"
    )
    calls.clear()
    algorithm = built(config)
    assert [algorithm.train()["callbacks_set_aside"] for _ in range(2)] == [1, 1]
    (told,) = [record for record in caplog.records if "set aside" in record.message]
    assert f"Failing.{method} raised" in told.message
    assert "the board is down" in caplog.text
    assert calls["result"] == 2


class Meddling(Callbacks):
    """Does something with the algorithm or the result."""

    def __init__(self, method, what):
        setattr(self, method, getattr(self, what))

    def stop(self, algorithm, *arguments):
        algorithm.stop()

    def stop_in_another_thread(self, algorithm, *arguments):
        thread = threading.Thread(target=algorithm.stop)
        thread.start()
        thread.join()

    def clear(self, algorithm, result):
        result.clear()

    def rename(self, algorithm, result):
        result["training_iteration"] = "first"

    def clear_steps(self, algorithm, result):
        result["env_steps"] = None


def meddling(built, method, what):
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0)
    config = config.training(train_batch_size=40, minibatch_size=40, num_epochs=1)
    return built(config.callbacks({"use": f"{__name__}:Meddling", "method": method, "what": what}))


@pytest.mark.parametrize("what", ["clear", "rename", "clear_steps"])
def test_a_result_without_its_counters_is_an_error_that_names_the_method(built, what):
    with pytest.raises(ValueError, match="on_train_result of a callback must leave"):
        meddling(built, "on_train_result", what).train()


def test_a_callback_that_stops_the_algorithm_is_told_how_to_end_a_run(built, caplog):
    with pytest.raises(RuntimeError, match="a callback cannot stop the algorithm"):
        meddling(built, "on_learn_on_batch", "stop").train()
    assert meddling(built, "on_train_result", "stop").train()["callbacks_set_aside"] == 1
    assert "name it in the section stop" in caplog.text


def test_another_thread_may_stop_the_algorithm_during_a_callback(built):
    algorithm = meddling(built, "on_train_result", "stop_in_another_thread")
    algorithm.train()
    with pytest.raises(RuntimeError, match="PPO was stopped"):
        algorithm.train()


def test_an_algorithm_that_was_stopped_says_so(built):
    algorithm = recorded(built)
    algorithm.stop()
    algorithm.stop()
    for use in (algorithm.train, algorithm.evaluate):
        with pytest.raises(RuntimeError, match="PPO was stopped; build another one"):
            use()


drawn = []


class Draws(Callbacks):
    def on_algorithm_init(self, algorithm):
        drawn.append(np.random.random())

    def on_train_result(self, algorithm, result):
        drawn.append(np.random.random())


def test_what_callbacks_draw_follows_from_the_seed_and_the_iteration_and_no_runner_draws_it(built):
    drawn.clear()
    config = PPOConfig().environment("CartPole-v1").callbacks(f"{__name__}:Draws").debugging(seed=5)
    algorithm = built(config.training(train_batch_size=40, minibatch_size=40, num_epochs=1))
    tiny.train(algorithm, 2)
    expected = []
    for key in ((), (0,), (1,)):
        with seeded_generators(generators_seed(5, Role.TRAIN, 0, *key)):
            expected.append(np.random.random())
    assert drawn == expected


class Timed(Callbacks):
    def on_algorithm_init(self, algorithm):
        with algorithm.timers.phase("learn"):
            calls["timed"] += 1

    on_checkpoint_loaded = on_algorithm_init


def test_an_iteration_takes_no_time_that_building_and_restoring_took(built):
    calls.clear()
    config = PPOConfig().environment("CartPole-v1").callbacks(f"{__name__}:Timed")
    algorithm = built(config)
    assert algorithm.timers.lap()[0]["learn_s"] == 0.0
    algorithm.set_state(algorithm.get_state())
    algorithm.after_restore()
    assert algorithm.timers.lap()[0]["learn_s"] == 0.0
    assert calls["timed"] == 2


made = []


class Created(Callbacks):
    def on_environment_created(self, env_runner, env, env_context):
        made.append((env_runner.role.name, env_context.worker_index, len(env.envs)))

    def on_sub_environment_created(self, env_runner, sub_environment, env_context, env_index):
        assert env_context.vector_index == env_index
        assert callable(sub_environment.step)
        made.append(env_index)


class Crashing(Metered):
    """Raises once, in the second step of its first episode."""

    crashed = False

    def step(self, action):
        if self.t == 1 and not Crashing.crashed:
            Crashing.crashed = True
            raise OSError("lost its simulator")
        return super().step(action)


@pytest.mark.parametrize("policies", [None, ["agent_0", "agent_1"]])
def test_environments_are_shown_when_they_are_made_and_made_again(built, policies):
    config = PPOConfig().callbacks(f"{__name__}:Created").env_runners(num_envs_per_env_runner=2)
    if policies:
        config = config.environment(make_multi_agent(Crashing)).multi_agent(policies=policies)
    else:
        config = config.environment(f"{__name__}:Crashing")
    config = config.training(train_batch_size=40, minibatch_size=40, num_epochs=1)
    made.clear()
    Crashing.crashed = False
    algorithm = built(config.fault_tolerance(restart_failed_sub_environments=True))
    assert made == [0, 1, ("TRAIN", 0, 2)]
    algorithm.train()
    assert made[3:] == [0]
    algorithm.evaluate()
    assert ("EVALUATION", 0) in [one[:2] for one in made[4:] if isinstance(one, tuple)]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"gym_env_vectorize_mode": "async"}, "env_runners.gym_env_vectorize_mode: async"),
        ({"remote_worker_envs": True}, "env_runners.remote_worker_envs"),
    ],
)
def test_sub_environments_elsewhere_are_shown_to_no_callback(settings, key):
    config = PPOConfig().environment("CartPole-v1").callbacks(f"{__name__}:Created")
    message = f"on_sub_environment_created is not called with {key}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        config.env_runners(**settings).experiment()


class Worded(Callbacks):
    def on_episode_end(self, algorithm, episode):
        episode.custom_metrics["level"] = "high"


def test_a_custom_metric_that_is_no_number_is_named(built):
    config = PPOConfig().environment("CartPole-v1").callbacks(f"{__name__}:Worded")
    algorithm = built(config.training(train_batch_size=100, minibatch_size=100))
    with pytest.raises(TypeError, match=r"custom_metrics\['level'\] is not a number: 'high'"):
        algorithm.train()


def test_callbacks_of_train_batches_are_refused_where_there_are_none():
    config = tiny.ALGORITHMS["A3C"]().environment("CartPole-v1")
    config.callbacks(f"{__name__}:Created", f"{__name__}:Recording")
    with pytest.raises(ConfigError, match=r"callbacks: .*Recording\.on_learn_on_batch") as caught:
        config.experiment()
    assert "Created" not in str(caught.value)
    with pytest.raises(ConfigError, match="has no 'Nothing'"):
        config.callbacks(f"{__name__}:Nothing").experiment()


def test_callbacks_that_fail_to_change_a_batch_end_the_run(built):
    config = PPOConfig().environment("CartPole-v1")
    config = config.training(train_batch_size=100, minibatch_size=100)
    use = {"use": f"{__name__}:Failing", "method": "on_learn_on_batch"}
    algorithm = built(config.callbacks(use))
    with pytest.raises(OSError, match="the board is down"):
        algorithm.train()
