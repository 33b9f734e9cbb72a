"""Callbacks are called where they say, with what they say."""

from collections import Counter

from rlrun.algorithms.callbacks import Callbacks
from rlrun.algorithms.ppo import PPOConfig
from rlrun.data import columns as col

calls = Counter()


class Recording(Callbacks):
    def __init__(self, bonus=0.0):
        self.bonus = bonus
        self.returns = []

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


def test_callbacks():
    calls.clear()
    algorithm = (
        PPOConfig()
        .environment("CartPole-v1")
        .training(train_batch_size=100, minibatch_size=50, num_epochs=1)
        .evaluation(interval=2, episodes=3)
        .callbacks({"use": f"{__name__}:Recording", "bonus": 1.0})
        .debugging(seed=0)
        .build()
    )
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


def test_what_a_callback_changes_in_the_batch_is_learned_from():
    def value_loss(bonus):
        algorithm = (
            PPOConfig()
            .environment("CartPole-v1")
            .training(train_batch_size=64, minibatch_size=64, num_epochs=1)
            .callbacks({"use": f"{__name__}:Recording", "bonus": bonus})
            .debugging(seed=0)
            .build()
        )
        return algorithm.train()["learners"]["default_policy"]["learner_stats"]["vf_loss"]

    assert value_loss(10.0) > 10 * value_loss(0.0)
