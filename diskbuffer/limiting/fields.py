"""The words of a limiter's table, of 64 bits each, which every process maps; `native/kernels/limiter.hpp` computes with them.

Each writer has a row of its own, as long as a line of the cache, that it alone writes to.
"""

# Words of the head of the table
VERSION, RATIO, MIN_SIZE, BOUND, SAMPLES, SAMPLES_BEFORE, SAMPLED_AT, ROWS = range(8)
HEAD = 16
# Words of a writer's row
ADDED, BEFORE, LOST, ADDED_AT, COME = range(5)
ROW = 8
MOST = 1024  # writers
WORDS = HEAD + MOST * ROW
