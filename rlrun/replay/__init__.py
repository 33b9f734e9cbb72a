"""Replay buffers and their stores."""
