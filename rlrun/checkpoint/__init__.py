"""Checkpoints: state as JSON, weights as safetensors, written whole or not at all."""
