"""Segments: their table, their files, their memory maps."""
