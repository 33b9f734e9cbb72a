"""One run: build, iterate, stop, checkpoint, resume; its folder, its sinks, rollouts."""
