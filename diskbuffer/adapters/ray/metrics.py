"""What Ray's dashboard and Prometheus show of shards and clients."""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge, Histogram

_SECONDS = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]


class ShardMetrics:
    """Figures of one shard, by the path of its store and its number."""

    def __init__(self, path: str, shard: int) -> None:
        tags = {"path": path, "shard": str(shard)}
        keys = tuple(tags)
        self._added = Counter("diskbuffer_steps_added", "Steps that were added", keys)
        self._steps = Gauge("diskbuffer_steps", "Steps that can be sampled", keys)
        self._sampled = Counter("diskbuffer_steps_sampled", "Steps that a shard gathered for batches", keys)
        self._seconds = Histogram("diskbuffer_gather_seconds", "Time that a shard takes for its part of a batch", _SECONDS, keys)
        for metric in (self._added, self._steps, self._sampled, self._seconds):
            metric.set_default_tags(tags)

    def added(self, count: int, steps: int) -> None:
        """Count steps that were added, and note how many there are."""
        self._added.inc(count)
        self._steps.set(steps)

    def sampled(self, count: int, seconds: float) -> None:
        """Count steps that were sampled, and the time that took."""
        self._sampled.inc(count)
        self._seconds.observe(seconds)


class ClientMetrics:
    """Figures of a process that adds or samples."""

    def __init__(self, path: str) -> None:
        self._waited = Counter("diskbuffer_add_waited_seconds", "Time that `add` waited for shards", ("path",))
        self._away = Gauge("diskbuffer_shards_away", "Shards that do not answer", ("path",))
        self._seconds = Histogram("diskbuffer_sample_seconds", "Time that a whole batch takes", _SECONDS, ("path",))
        for metric in (self._waited, self._away, self._seconds):
            metric.set_default_tags({"path": path})

    def waited(self, seconds: float) -> None:
        """Count time that adding waited."""
        self._waited.inc(seconds)

    def away(self, shards: int) -> None:
        """Note how many shards do not answer."""
        self._away.set(shards)

    def sampled(self, seconds: float) -> None:
        """Note the time that a batch took."""
        self._seconds.observe(seconds)
