"""What a limiter over a cluster counts, and its rule. No Ray here, no files and no clock.

All numbers only grow, and each has one owner: of a shard, how many steps it has ever had; of a learner, how many samples it has
ever taken. So two ledgers are merged by taking the larger of each number, in any order and any number of times (a grow-only
counter: Shapiro et al., 2011, "Conflict-free replicated data types"). A message that is lost, late or there twice does no harm.

The rule is that of `diskbuffer.native.limiter`, over these numbers.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from diskbuffer import SampleToInsertRatio


class Settings(NamedTuple):
    """What is asked for: `bound` is the buffer of the error."""

    ratio: float
    min_size: int
    bound: float

    @classmethod
    def of(cls, settings: SampleToInsertRatio) -> Settings:
        """Return the numbers of what a user gave."""
        return cls(float(settings.ratio), settings.min_size, settings.bound)


@dataclass
class Ledger:
    """Counts of shards and of learners.

    Attributes
    ----------
    settings : Settings
    changes : int
        How often something else was asked for. The ledger with more of them tells what is asked, and from where it counts.
    added : dict of int to int
        Of each shard, steps ever.
    before : dict of int to int
        Of these, those that were there before it counted.
    samples : dict of str to int
        Of each learner, ever.
    samples_before : int
        Of these, those that were taken before it counted.
    """

    settings: Settings
    changes: int = 0
    added: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    samples_before: int = 0

    def note_added(self, shard: int, ever: int) -> None:
        """Take a shard's number; what it had when it was first heard of does not count."""
        self.before.setdefault(shard, ever)
        self.added[shard] = max(self.added.get(shard, 0), ever)

    def note_sampled(self, learner: str, ever: int) -> None:
        """Take a learner's number."""
        self.samples[learner] = max(self.samples.get(learner, 0), ever)

    def merge(self, other: Ledger) -> None:
        """Take what another copy knows."""
        if other.changes > self.changes:
            self.settings, self.changes, self.samples_before = other.settings, other.changes, other.samples_before
            self.before = dict(other.before)
        for shard, ever in other.added.items():
            self.before.setdefault(shard, other.before.get(shard, ever))
            self.note_added(shard, ever)
        for learner, ever in other.samples.items():
            self.note_sampled(learner, ever)

    def count_anew(self, settings: Settings) -> None:
        """Count from here on, for something else that is asked for."""
        self.settings, self.changes = settings, self.changes + 1
        self.before, self.samples_before = dict(self.added), sum(self.samples.values())

    # The rule

    @property
    def counts(self) -> tuple[int, int, int]:
        """Steps ever, steps that count as inserts, and samples that count."""
        added, before = sum(self.added.values()), sum(self.before.values())
        inserts = added - max(before, self.settings.min_size)
        return added, inserts, sum(self.samples.values()) - self.samples_before

    @property
    def surplus(self) -> float:
        """How many samples are due; below zero, how many too many there were."""
        _, inserts, samples = self.counts
        return self.settings.ratio * inserts - samples

    def may_give(self, actors: int) -> int:
        """Return how many steps one of so many actors may add before it has to ask again; 0 if it has to wait.

        As long as the bound is not passed, one step may be added, however far that leads.
        """
        room = self.settings.bound - self.surplus
        return 0 if room < 0 else 1 + math.floor(room / self.settings.ratio / max(actors, 1))

    def may_take(self, learners: int) -> int:
        """Return how many samples one of so many learners may take before it has to ask again; 0 if it has to wait."""
        if self.counts[0] < self.settings.min_size:
            return 0
        room = self.surplus + self.settings.bound
        return 0 if room < 0 else 1 + math.floor(room / max(learners, 1))

    # As bytes

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        shards = {str(shard): [ever, self.before[shard]] for shard, ever in self.added.items()}
        fields = {"asked": list(self.settings), "changes": self.changes, "shards": shards, "samples": self.samples}
        return json.dumps(fields | {"samples_before": self.samples_before}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Ledger:
        """Return what `to_bytes` made bytes of; a ValueError, KeyError or TypeError if it is something else."""
        fields = json.loads(data)
        ratio, size, bound = fields["asked"]
        shards = {int(shard): (int(ever), int(before)) for shard, (ever, before) in fields["shards"].items()}
        return cls(
            Settings(float(ratio), int(size), float(bound)),
            int(fields["changes"]),
            {shard: ever for shard, (ever, _) in shards.items()},
            {shard: before for shard, (_, before) in shards.items()},
            {str(learner): int(ever) for learner, ever in fields["samples"].items()},
            int(fields["samples_before"]),
        )
