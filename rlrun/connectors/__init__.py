"""rlrun.connectors."""
