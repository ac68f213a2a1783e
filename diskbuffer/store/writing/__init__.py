"""Rows on their way to segments."""
