"""Holding the ratio of samples to inserts: whoever is ahead of the other side waits."""
