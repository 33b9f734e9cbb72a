"""From environments to batches: env runners, alone or many as Ray actors."""
