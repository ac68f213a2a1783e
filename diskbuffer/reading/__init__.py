"""From the store to batches."""
