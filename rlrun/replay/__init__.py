"""Replay buffers and what they store."""
