"""What a run tells its user: the console, metrics.jsonl, TensorBoard."""
