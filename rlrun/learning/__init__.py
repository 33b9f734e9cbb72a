"""From batches to better weights: returns and advantages, the optimizer, the learner."""
