"""From steps of environments to rows: what continues, where an episode starts and ends, and what is refused."""
