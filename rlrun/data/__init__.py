"""The batches that all data travels in. Numpy only."""
