"""Columns that are written after the steps were recorded."""
