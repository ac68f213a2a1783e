"""How much is tried: little in the set that runs often, much in the nightly one.

Without an option pytest runs the fast set: everything but what is marked `nightly`, and of the variants of a test that is marked
``some(n)`` only `n`, the same in every run. With ``--nightly`` it runs what the fast set leaves out; and again, with larger
amounts, what has an amount: properties that hypothesis looks at, and tests with the fixture `amount`.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings

nightly = False


def amount(fast: int, thorough: int) -> int:
    """Return how many cases to try in this run."""
    return thorough if nightly else fast


def examples(fast: int, thorough: int, **other: Any) -> settings:
    """Have hypothesis draw so many examples after the simplest one, with which it begins; none has a deadline."""
    return settings(max_examples=amount(fast + 1, thorough), deadline=None, print_blob=True, **other)
