"""What a store is asked to be: its columns, what is done to their values, and the environment they come from."""
