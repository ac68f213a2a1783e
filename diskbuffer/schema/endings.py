"""How episodes end, in the words that users see and give."""

from __future__ import annotations

RUNNING, TERMINATED, TRUNCATED, CUT_OFF = "running", "terminated", "truncated", "cut off"
ENDINGS = (TERMINATED, TRUNCATED, CUT_OFF, RUNNING)
