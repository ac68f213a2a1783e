"""Episodes that ended without a flag, as a step did not start at the observation that the one before led to."""

from __future__ import annotations

import warnings

_FEW = 20  # that no more than these steps were cut off tells nothing
_DEPTH = 4  # calls between the caller of `add`, whom the warning is to name, and `warnings.warn`


class CutOffs:
    """Count them, and warn once, where most steps cut one off: then something is wrong with what is given.

    Attributes
    ----------
    detected : int
        How many steps cut off an episode.
    requested : int
        Episodes that `cut_off` ended.
    due : bool
        Whether `warn_if_due` warns.
    """

    def __init__(self) -> None:
        self._steps = self.detected = self.requested = 0
        self.due = self._expected = False

    @property
    def total(self) -> int:
        """Episodes that ended without a flag."""
        return self.detected + self.requested

    def note(self, count: int, steps: int, *, requested: bool = False) -> None:
        """Note that of all `steps` so far, some more cut off an episode; where the caller `requested` that, nothing is wrong."""
        if requested:
            self.requested += count
            return
        self.detected, self._steps = self.detected + count, steps
        self.due = not self._expected and self.detected > max(_FEW, steps // 2)

    def expect(self) -> None:
        """Do not warn, or not once more."""
        self.due, self._expected = False, True

    def warn_if_due(self) -> None:
        """Warn, before anything is recorded, so that a filter which makes the warning an error does no harm."""
        if not self.due:
            return
        self.expect()
        warnings.warn(
            f"{self.detected:,} of {self._steps:,} steps cut off an episode: their obs is not the next_obs of the step before, "
            "so the buffer takes it for another episode's first observation. Returns over several steps, sequences and episodes "
            "are wrong then. Likely causes: a wrapper that normalises obs and next_obs with other statistics; an environment "
            "that overwrites the array that it returned last (give copies); steps that are shuffled, or of several environments "
            "in turn. If an episode goes on, give its obs as the next_obs of the step before, the same values; if it does not, "
            "tell at its last step that it is over",
            UserWarning,
            stacklevel=_DEPTH,
        )
