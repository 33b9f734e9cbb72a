"""Pieces of episodes go through the policy's and the callbacks' hands, never two at once."""

import numpy as np
import pytest
from counting_envs import collect
from recording_policy import RecordingPolicy

import rlrun
from rlrun.config.schema import EnvRunnersConfig, EnvSpec, UseSpec
from rlrun.data.view_requirement import ViewRequirement
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.postprocessing import Postprocessing
from rlrun.sampling.runner_messages import RunnerSpec


class Postprocessed(RecordingPolicy):
    """Notes the pieces it is shown, and adds what no view can say: the reward that is to come."""

    def postprocess_trajectory(self, batch, other_agent_batches=None, episode=None):
        assert set(batch["eps_id"]) == {episode}
        self.pieces.append((len(batch), bool(batch["terminateds"][-1]), "secret" in batch))
        rewards = batch["rewards"]
        batch["rewards_to_come"] = np.cumsum(rewards[::-1])[::-1] - rewards
        return batch


class NextActions(rlrun.Callbacks):
    """The source documents' second example."""

    def on_postprocess_trajectory(
        self,
        worker,
        episode,
        agent_id,
        policy_id,
        policies,
        postprocessed_batch,
        original_batches,
        **kwargs,
    ):
        assert isinstance(worker, EnvRunner)
        assert policies[policy_id] is worker.policy is original_batches[agent_id][1]
        assert "rewards_to_come" in postprocessed_batch
        assert "rewards_to_come" not in original_batches[agent_id][2]
        assert (postprocessed_batch["eps_id"] == episode).all()
        postprocessed_batch["next_actions"] = np.concatenate(
            [postprocessed_batch["actions"][1:], np.zeros(1, np.int64)]
        )


def postprocessing_runner(num_envs=1, *, views=None, states=False, callbacks=(), **settings):
    def policy(observation_space, action_space, model):
        made = Postprocessed(observation_space, action_space, states)
        seen = {name: view for name, view in made.view_requirements.items() if "state" in name}
        made.view_requirements = {"obs": ViewRequirement(), **seen, **(views or {})}
        made.pieces = []
        return made

    return EnvRunner(
        RunnerSpec(
            EnvSpec(use="counting_envs:CountingEnv", kwargs=settings.pop("env", {})),
            EnvRunnersConfig(num_envs_per_env_runner=num_envs, **settings),
            policy_factory=policy,
            postprocessors=tuple(UseSpec(use=name) for name in callbacks),
        )
    )


def test_pieces_end_with_episodes_and_with_fragments():
    """Episodes of 98 in fragments of 100: 98 steps, the 2 that follow, the 96 that remain, ..."""
    runner = postprocessing_runner(env={"length": 98})
    first, second = (reply.batch for reply in collect(runner, [100, 100]))
    pieces = [(98, True, False), (2, False, False), (96, True, False), (4, False, False)]
    assert runner.policy.pieces == pieces
    assert first["rewards_to_come"][[0, 97, 98, 99]].tolist() == [sum(range(2, 99)), 0, 2, 0]
    assert second["rewards_to_come"][95] == 0
    assert len(first) == len(second) == 100


@pytest.mark.parametrize("collector", ["ColumnarCollector", "SimpleListCollector"])
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_postprocessing_changes_nothing_but_what_it_adds(collector, states, mode):
    settings = {"batch_mode": mode, "sample_collector": collector, "env": {"random_length": True}}
    batches = []
    for add in (True, False):
        runner = postprocessing_runner(3, states=states, **settings)
        if not add:
            runner.postprocess = Postprocessing({}, [])
        batches.append([reply.batch for reply in collect(runner, [7, 5])])
    for processed, plain in zip(*batches, strict=True):
        processed.check_valid()
        assert processed.keys() - plain.keys() == {"rewards_to_come"}
        assert processed.shared("obs")[0] is processed.shared("new_obs")[0]
        assert len(processed.shared("obs")[0]) == len(plain.shared("obs")[0])
        for name in plain:
            np.testing.assert_array_equal(processed[name], plain[name], err_msg=name)


def test_views_that_are_not_for_training_are_there_for_postprocessing():
    secret = {"secret": ViewRequirement("rewards", shift=-1, used_for_training=False)}
    runner = postprocessing_runner(views=secret, env={"length": 5})
    batch = collect(runner, [5])[0].batch
    assert runner.policy.pieces == [(5, True, True)]
    assert not {"secret", "new_secret"} & batch.keys()
    runner.postprocess = Postprocessing({}, [])  # nobody wants it then
    assert not {"secret", "new_secret"} & collect(runner, [5])[0].batch.keys()


def test_next_actions_by_view_and_by_callback_are_the_same():
    """The source documents' two ways to the actions to come."""
    viewed = postprocessing_runner(2, env={"random_length": True})
    viewed.policy.view_requirements["next_actions"] = ViewRequirement(
        "actions", shift=1, space=viewed.policy.action_space
    )
    called = postprocessing_runner(
        2, env={"random_length": True}, callbacks=[f"{__name__}:NextActions"]
    )
    for one, other in zip(collect(viewed, [9, 4]), collect(called, [9, 4]), strict=True):
        assert "next_actions" in one.batch
        assert one.batch["next_actions"].any()
        np.testing.assert_array_equal(one.batch["next_actions"], other.batch["next_actions"])


def test_nobody_who_postprocesses_costs_nothing():
    runner = EnvRunner(RunnerSpec(EnvSpec(use="CartPole-v1")))
    assert runner.postprocess.does_nothing
