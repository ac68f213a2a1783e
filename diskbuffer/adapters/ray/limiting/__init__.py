"""The limiter over a cluster: one actor knows how many steps all shards have and how many samples all learners took."""
