"""Runs side by side: what their settings differ in, and what they reach."""
