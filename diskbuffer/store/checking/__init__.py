"""Checking a store, and repairing it."""
