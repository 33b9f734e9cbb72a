"""The names of the columns of a batch: one constant each, the same words everywhere.

Owns the names and what follows from a name alone; knows nothing of arrays.

| column | row shape | meaning |
|---|---|---|
| obs | as the (preprocessed) observation | observation before the action |
| new_obs | as obs | observation after the step: at an episode's end its final one |
| actions | as the action | the action in the module's form, before unsquashing or clipping |
| rewards | () | reward of the step |
| terminateds | () bool | whether the episode ended in a terminal state |
| truncateds | () bool | whether the episode was cut off, as by a time limit |
| infos | () object | the env's info dict of the step |
| eps_id, env_id, agent_index | () int | episode, sub-environment and agent of the row |
| unroll_id | () int | fragment of the row: equal in rows of one trajectory of one `sample()` call |
| t | () int | step within the episode, from 0 |
| action_logp | () | log-probability of the action when it was drawn |
| action_dist_inputs | (P,) | parameters of the distribution that the action was drawn from |
| vf_preds | () | V(obs) |
| weights_checksum | () int | checksum of the weights that gave action_dist_inputs and vf_preds |
| advantages, value_targets | () | computed from rewards and values |
| prev_actions, prev_rewards | as actions, () | action and reward of the step before |
| discounts | () | factor of the value of new_obs: gamma to the power of the steps taken |
| weights | () | importance-sampling weight of the row in a loss |
| item_ids | () int | number of the transition in a replay buffer |
| new_x | as x | the view x, one step later |
| seq_lens | () int, one row per *sequence* | lengths of the sequences that the rows form |
| state_in_k | as the state | recurrent state at the start: one row per sequence, or per step |
| state_out_k | as the state | recurrent state after the step |
"""

from functools import cache

import numpy as np

OBS = "obs"
NEXT_OBS = "new_obs"
ACTIONS = "actions"
REWARDS = "rewards"
TERMINATEDS = "terminateds"
TRUNCATEDS = "truncateds"
INFOS = "infos"
EPS_ID = "eps_id"
ENV_ID = "env_id"
AGENT_INDEX = "agent_index"
UNROLL_ID = "unroll_id"
T = "t"
ACTION_LOGP = "action_logp"
ACTION_DIST_INPUTS = "action_dist_inputs"
VF_PREDS = "vf_preds"
WEIGHTS_CHECKSUM = "weights_checksum"
ADVANTAGES = "advantages"
VALUE_TARGETS = "value_targets"
PREV_ACTIONS = "prev_actions"
PREV_REWARDS = "prev_rewards"
DISCOUNTS = "discounts"
WEIGHTS = "weights"
ITEM_IDS = "item_ids"
SEQ_LENS = "seq_lens"

NEXT_PREFIX = "new_"
STATE_IN_PREFIX = "state_in_"
STATE_OUT_PREFIX = "state_out_"

STEP_COLUMNS: dict[str, type] = {
    REWARDS: np.float32,
    TERMINATEDS: np.bool_,
    TRUNCATEDS: np.bool_,
    EPS_ID: np.int64,
    T: np.int64,
    UNROLL_ID: np.int64,
    ENV_ID: np.int64,
    AGENT_INDEX: np.int64,
    INFOS: np.object_,
}
"""Columns that a collector records in every step if a view needs them -> their dtype."""

RETIRED_COLUMNS = {"dones": f"{TERMINATEDS!r} and {TRUNCATEDS!r}"}
"""Names that are refused -> their replacements."""


@cache
def is_countable(name: str) -> bool:
    """Whether a column's length is the batch's number of rows; not for infos, states, seq_lens."""
    return name not in (INFOS, SEQ_LENS) and not name.startswith(
        (STATE_IN_PREFIX, STATE_OUT_PREFIX)
    )
