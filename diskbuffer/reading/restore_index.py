"""From a store's files to the index: what happens after a kill is that this is read again.

Only the segment table and one flag a row are read: where episodes end. All else follows. Two more are looked at where an episode
of no step is: whether it is a row of a lead-in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from diskbuffer.errors import CorruptionError, EvictedError
from diskbuffer.index.index import NO_LEADS, Index, Of, Rows
from diskbuffer.store.following import MOVING_SECONDS
from diskbuffer.store.recovery import power_loss
from diskbuffer.store.store import Kept, Store

Int64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
T = TypeVar("T")

# Of a reader whose view is torn by a writer that evicts, seals and opens segments at the same time.
_TRIES = 200
_EXPECTED = 512  # files that are asked for at once, where they are elsewhere


def read_index(store: Store, context: int) -> Index:
    """Build the index of a store. About 1 ms for 100,000 steps."""
    if store.writable:
        return build_index(store, store.segments(), context)
    return untorn(store, lambda segments: build_index(store, segments, context))


def untorn(store: Store, read: Callable[[Kept], T]) -> T:
    """Return what is read of a store, by its segments; anew while a writer elsewhere moves them meanwhile."""
    try:
        return _untorn(store, read)
    except BaseException:  # whoever goes on with an older index must not take rows that came into its slots for those it knows
        store.following.forget()
        raise


def _untorn(store: Store, read: Callable[[Kept], T]) -> T:
    begun, tries = time.monotonic(), 0
    while tries < 3 or (tries < _TRIES and time.monotonic() - begun < MOVING_SECONDS):
        tries += 1
        store.reread()
        try:
            segments = store.segments()
            found = read(segments)
        except (CorruptionError, EvictedError) as error:
            torn: Exception = error
            continue
        slots = np.concatenate([slots for slots, _ in segments])
        if store.following.unchanged(slots):  # or a map of a slot's last rows would serve for the rows that are in it now
            return found
        torn = EvictedError(f"{store.root}: segments come and go faster than the table can be read")
    raise torn


def build_index(store: Store, segments: Kept, context: int) -> Index:
    """Build the index of a store's segments, by all of their rows."""
    index = Index(store.layout.streams, store.layout.segment_rows, context)
    rows, index.environments = index.segment_rows, np.arange(store.layout.n_envs)
    heads, first_steps = dict[int, tuple[int, bool]](), list[int]()
    firsts, numbers, starts, leads = (list[tuple[int, Int64]]() for _ in range(4))
    for stream, (slots, lengths) in enumerate(segments):
        if not len(slots):
            continue
        oldest = int(slots[0])
        first = store.table.get("first_row", oldest)
        steps_before, episode_start = store.table.before(oldest) or (power_loss.steps_before(store, oldest), first)
        if first > 0 and store.table.before(oldest) is None and store.kept is None:
            raise CorruptionError(
                f"{store.root}: how many steps came before slot {oldest} is not known; the segment table is damaged. "
                "`diskbuffer check --repair` counts from there on"
            )
        if not 0 < lengths[-1] <= rows or (lengths[:-1] != rows).any():
            raise CorruptionError(f"{store.root}: a slot of stream {stream} was emptied while it was read")
        head = first + (len(slots) - 1) * rows + int(lengths[-1]) - 1
        begun, lead_rows, last = [np.array([min(first, max(0, episode_start))], np.int64)], [NO_LEADS], 1
        for n, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
            if n % _EXPECTED == 0:
                store.verification.expect(("is_last",), slots[n : n + _EXPECTED].tolist())
            flags = store.verification.flags("is_last", slot, length)
            begun.append(first + n * rows + np.flatnonzero(flags) + 1)
            empty = flags & np.append(bool(last), flags[:-1])  # an episode of one row; what came before may have ended one
            if empty.any():
                lead_rows.append(_lead_rows(store, slot, empty, first + n * rows))
            last = int(flags[-1])
        found = np.concatenate(begun)
        starts.append((stream, found[found <= head]))
        leads.append((stream, lead_ins(np.concatenate(lead_rows), first, head)))
        firsts.append((stream, first + np.arange(len(slots)) * rows))
        numbers.append((stream, slots))
        heads[stream] = head, store.open_ends.get(stream, bool(last))
        first_steps.append(steps_before)
    everything = rows_of(heads, firsts, numbers, starts, leads)
    index.restore(everything, Of(everything.streams, np.array(first_steps, np.int64)))
    return index


def rows_of(
    heads: dict[int, tuple[int, bool]],
    firsts: list[tuple[int, Int64]],
    numbers: list[tuple[int, Int64]],
    starts: list[tuple[int, Int64]],
    leads: list[tuple[int, Int64]],
) -> Rows:
    """Put what was read of streams together; `heads` are positions, and whether each is an episode's last."""
    nothing = np.empty(0, np.int64)
    newest = np.array(list(heads.values()), np.int64).reshape(-1, 2)
    return Rows(
        np.array(list(heads), np.int64),
        newest[:, 0],
        newest[:, 1] != 0,
        Of.joined(firsts, nothing),
        Of.joined(numbers, nothing).values,
        Of.joined(starts, nothing),
        Of.joined(leads, NO_LEADS),
    )


def _lead_rows(store: Store, slot: int, empty: Bools, first: int) -> Int64:
    """Return those of a slot's rows that are of lead-ins, and whether one begins with each, (n, 2)."""
    truncated, terminated = (store.verification.flags(path, slot, len(empty)) for path in ("truncated", "terminated"))
    rows = np.flatnonzero(empty & truncated)
    return np.stack([first + rows, terminated[rows]], axis=1)


def lead_ins(rows: Int64, low: int, head: int) -> Int64:
    """Put the rows of lead-ins together, as `Index.add_leads` takes them; one that began before the oldest row did so by one."""
    at, begins = rows[:, 0], rows[:, 1] != 0
    apart = np.flatnonzero(np.append(True, (np.diff(at) != 1) | begins[1:])) if len(at) else np.empty(0, np.int64)
    firsts, ends = at[apart], at[np.append(apart[1:] - 1, len(at) - 1)] + 1 if len(at) else at
    firsts = np.where((firsts == low) & (low > 0) & ~begins[apart], low - 1, firsts)
    return np.stack([ends, firsts], axis=1)[ends <= head]
