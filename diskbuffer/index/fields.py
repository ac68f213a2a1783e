"""The table of `Streams`: what it has of each stream, one row of int64, for compiled code to read."""

HEAD = 0  # position of the newest row, -1 where there is none
ENDED = 1  # 1 where that row is the last of an episode
LOW = 2  # position of the oldest row kept
FLOOR = 3  # position of the oldest step to sample: the frames stacked behind it are there
EPISODES = 4  # episodes in `starts`; the first is the one that `FLOOR` lies in
STARTS = 5  # address of their first positions
SEGMENTS = 6  # segments kept
SLOTS = 7  # address of their slots
PREFIXES = 8  # stack prefixes
PREFIX_PLACES = 9  # address of theirs: of each the first row of its episode, and its own
STORE = 10  # which of several stores the stream is of; 0 where there is one
STORE_STREAM = 11  # its number there
ROOM = 12  # how many more first positions of episodes fit behind those that there are
FIELDS = 13
