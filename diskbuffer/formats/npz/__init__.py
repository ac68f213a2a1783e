"""Formats whose files are numpy's ``.npz``: Dreamer's replay, DrQ-v2's episodes, OGBench's data sets."""
