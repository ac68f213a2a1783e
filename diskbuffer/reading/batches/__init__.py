"""The memory of a batch, and what users get of it."""
