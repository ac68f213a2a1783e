"""Snapshots, marks and backups."""
