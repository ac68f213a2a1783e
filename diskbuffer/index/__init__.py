"""The streams and their episodes in RAM."""
