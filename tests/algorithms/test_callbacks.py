"""Callbacks are called where they say, with what they say."""

from collections import Counter

from tiny import learner_stats

from rlrun.algorithms.callbacks import Callbacks
from rlrun.algorithms.ppo import PPOConfig
from rlrun.data import columns as col

calls = Counter()


class Recording(Callbacks):
    def __init__(self, bonus=0.0):
        self.bonus = bonus

    def on_algorithm_init(self, algorithm):
        calls["init"] += 1

    def on_episode_end(self, algorithm, episode):
        calls["episode"] += 1

    def on_sample_end(self, algorithm, batch):
        calls["rows"] += len(batch)
        batch[col.REWARDS] = batch[col.REWARDS] + self.bonus

    def on_train_result(self, algorithm, result):
        calls["result"] += 1
        result["mine"] = {"answer": 42}

    def on_evaluate_start(self, algorithm):
        calls["evaluate_start"] += 1

    def on_evaluate_end(self, algorithm, evaluation):
        calls["evaluated_episodes"] += evaluation["episodes"]

    def on_checkpoint_loaded(self, algorithm):
        calls["loaded"] += 1


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
    assert all(result["mine"]["answer"] == 42 for result in results)
    assert calls == {
        "init": 1,
        "episode": results[-1]["episodes"],
        "rows": 200,
        "result": 2,
        "evaluate_start": 1,
        "evaluated_episodes": 3,
        "loaded": 1,
    }


def test_what_a_callback_changes_in_the_batch_is_learned_from(built):
    plain, raised = (learner_stats(recorded(built, bonus))["vf_loss"] for bonus in (0.0, 10.0))
    assert raised > 10 * plain
