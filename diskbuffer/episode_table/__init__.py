"""Episodes as a table, conditions that choose among them, and one episode's columns."""
