"""Reports of a run: the console, metrics.jsonl, TensorBoard, pages."""
