"""What a writer that was killed, or a power loss, left."""
