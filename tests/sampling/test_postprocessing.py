"""Trajectories are postprocessed by policies and callbacks, with those of other agents at hand."""

import numpy as np
import pytest
from agent_runners import EXAMPLES, MLP, by_agent, cartpole, make, played, sample
from counting_envs import collect, counting_spec
from recording_policy import RecordingPolicy
from scripted_agents import EXPECTED, Echo

import rlrun
from rlrun.config.policies import PolicySettings
from rlrun.config.schema import ModelConfig, TrainingConfig, UseSpec
from rlrun.data.view_requirement import ViewRequirement
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.postprocessing import Postprocessing
from rlrun.sampling.runner_messages import RunnerCallbacks


class Postprocessed(RecordingPolicy):
    """Records what it is shown, and adds what no view can say: the reward that is to come."""

    def postprocess_trajectory(self, batch, other_agent_batches=None, episode=None):
        assert set(batch["eps_id"]) == {episode}
        self.shown.append((len(batch), bool(batch["terminateds"][-1]), "secret" in batch))
        rewards = batch["rewards"]
        batch["rewards_to_come"] = np.cumsum(rewards[::-1])[::-1] - rewards
        return batch


class NextActions(rlrun.Callbacks):
    """The actions to come, as a column."""

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


class Looks(rlrun.Callbacks):
    def on_postprocess_trajectory(self, **kwargs):
        assert "weights_checksum" in kwargs["postprocessed_batch"]


class Checked(RecordingPolicy):
    """Says which weights have acted."""

    def look(self, input_dict):
        actions, states, _ = super().look(input_dict)
        return actions, states, {"weights_checksum": np.full(len(actions), 7)}


def postprocessor(name):
    return RunnerCallbacks(UseSpec(use=name), frozenset({"on_postprocess_trajectory"}))


def postprocessing_runner(num_envs=1, *, views=None, states=False, callbacks=(), **settings):
    def policy(observation_space, action_space):
        made = Postprocessed(observation_space, action_space, states)
        seen = {name: view for name, view in made.view_requirements.items() if "state" in name}
        made.view_requirements = {"obs": ViewRequirement(), **seen, **(views or {})}
        made.shown = []
        return made

    more = {"callbacks": tuple(postprocessor(name) for name in callbacks)}
    env = settings.pop("env", {})
    spec = counting_spec(num_envs, policy=policy, settings=settings, more=more, **env)
    return EnvRunner(spec)


def test_trajectories_end_with_episodes_and_with_fragments():
    """Episodes of 98 in fragments of 100: 98 steps, the 2 that follow, the 96 that remain, ..."""
    runner = postprocessing_runner(env={"length": 98})
    first, second = (reply.batch for reply in collect(runner, [100, 100]))
    shown = [(98, True, False), (2, False, False), (96, True, False), (4, False, False)]
    assert runner.policy.shown == shown
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
    assert runner.policy.shown == [(5, True, True)]
    assert not {"secret", "new_secret"} & batch.keys()
    runner.postprocess = Postprocessing({}, [])
    assert not {"secret", "new_secret"} & collect(runner, [5])[0].batch.keys()


def test_next_actions_by_view_and_by_callback_are_the_same():
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


def test_without_postprocessing_there_is_nothing_to_do():
    for runner in (counting_spec(), cartpole({"p": MLP}).spec):
        assert EnvRunner(runner).postprocess.does_nothing


class WithOthers(Echo):
    """Records what it is shown, and adds the sum of the others' rewards at the same time."""

    def postprocess_trajectory(self, batch, other_agent_batches=None, episode=None):
        self.shown = [*getattr(self, "shown", []), (episode, len(batch), dict(other_agent_batches))]
        assert set(batch["eps_id"]) == {episode}
        at = {int(t): 0.0 for t in batch["t"]}
        for _, _, other in other_agent_batches.values():
            assert set(other["eps_id"]) == {episode}
            for t, reward in zip(other["t"].tolist(), other["rewards"].tolist(), strict=True):
                if t in at:
                    at[t] += reward
        batch["of_others"] = np.array([at[t] for t in batch["t"].tolist()], np.float32)
        return batch


WITH_OTHERS = PolicySettings(ModelConfig(), TrainingConfig(), use=f"{__name__}:WithOthers")
TIMES = {agent: {row[3]: row[2] for row in rows} for agent, rows in EXPECTED.items()}


@pytest.mark.parametrize("collector", [None, "SimpleListCollector"])
@pytest.mark.parametrize("agents", [{"*": "p"}, {"[ab]": "p", "c": "q"}])
@pytest.mark.parametrize(("mode", "length"), [("truncate_episodes", 7), ("complete_episodes", 5)])
def test_other_agents_are_from_the_same_episode(collector, agents, mode, length):
    policies = dict.fromkeys(set(agents.values()), WITH_OTHERS)
    more = {"num_envs": 2, "batch_mode": mode, "sample_collector": collector}
    runner = make("scripted_agents:Scripted", policies, agents, **more)
    rows = by_agent([sample(runner, k, length).batch for k in range(2)])
    for env_index in range(2):
        for index, agent in enumerate("abc"):
            assert played(rows[env_index, 0, index]) == EXPECTED[agent]
            for row in rows[env_index, 0, index]:
                others = sum(
                    rewards.get(row["t"], 0.0) for name, rewards in TIMES.items() if name != agent
                )
                assert row["of_others"] == others
    shown = [others for actor in runner.actors.values() for *_, others in actor.policy.shown]
    assert {frozenset(others) for others in shown} == {
        frozenset("bc"),
        frozenset("ac"),
        frozenset("ab"),
    }
    for others in shown:
        for agent, (policy_id, policy, original) in others.items():
            assert policy_id == (agents.get(agent) or agents.get("*") or "p")
            assert policy is runner.actors[policy_id].policy
            assert "of_others" not in original


def test_fragments_cut_trajectories_of_all_agents():
    runner = make("scripted_agents:Scripted", {"p": WITH_OTHERS})
    sample(runner, 0, 3)
    # Agent b is silent until 3, and c has not come.
    shown = runner.actors["p"].policy.shown
    assert [(rows, set(others)) for _, rows, others in shown] == [(3, {"b"}), (1, {"a"})]


class CentralCritic(rlrun.Callbacks):
    """What a critic that sees all agents needs: the others' observations beside one's own."""

    def on_postprocess_trajectory(
        self,
        *,
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
        own_id, policy, original = original_batches[agent_id]
        assert own_id == policy_id
        assert policies[policy_id] is policy is worker.actors[policy_id].policy
        batch, width = postprocessed_batch, original["obs"].shape[1]
        assert "central_obs" not in original
        seen = np.zeros((len(batch), 2 * width), np.float32)
        seen[:, :width] = batch["obs"]
        for name, (_, _, other) in original_batches.items():
            if name != agent_id:
                _, mine, its = np.intersect1d(batch["t"], other["t"], return_indices=True)
                seen[mine, width:] = other["obs"][its]
        batch["central_obs"] = seen


def test_a_centralised_critic_sees_what_the_other_saw_in_the_same_step():
    spec = {"callbacks": (postprocessor(f"{__name__}:CentralCritic"),)}
    env = f"{EXAMPLES}:MultiAgentCartPole"
    runner = make(env, {"agent_0": MLP, "agent_1": MLP}, num_envs=2, spec=spec)
    batches = sample(runner, 0, 60).batch.policy_batches
    at = {
        policy_id: {(row["eps_id"], row["t"]): row for row in batch.rows()}
        for policy_id, batch in batches.items()
    }
    together = at["agent_0"].keys() & at["agent_1"].keys()
    assert len(together) > 20
    for policy_id, other in (("agent_0", "agent_1"), ("agent_1", "agent_0")):
        for place, row in at[policy_id].items():
            there = at[other][place]["obs"] if place in together else np.zeros(4)
            np.testing.assert_array_equal(row["central_obs"], [*row["obs"], *there])


@pytest.mark.parametrize("callbacks", [(), (postprocessor(f"{__name__}:Looks"),)])
def test_what_policies_put_out_is_not_known_of_rows_that_callbacks_could_change(callbacks):
    runner = EnvRunner(counting_spec(1, policy=Checked, more={"callbacks": callbacks}))
    batch = collect(runner, [4])[0].batch
    assert ("weights_checksum" in batch) == (not callbacks)
