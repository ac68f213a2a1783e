"""Batches ahead of time, in pinned memory or on a device."""
