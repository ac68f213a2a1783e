"""Rows of the store's maps, decoded into memory."""
