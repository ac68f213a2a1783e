"""Opening a store: the one place that knows the store, what its last writer left, and its marks together."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from diskbuffer.errors import CorruptionError, EvictedError, LockedError
from diskbuffer.runtime import forks
from diskbuffer.store import directory, tail_copy
from diskbuffer.store.copies import marks
from diskbuffer.store.following import WayBack
from diskbuffer.store.format.layout import SEGMENTS
from diskbuffer.store.last_writer import LastShutdown, State, how_it_was_left, values_left
from diskbuffer.store.origin import Origin
from diskbuffer.store.recovery import going_back, resume_writing
from diskbuffer.store.recovery.visible_rows import visible_from, visible_rows
from diskbuffer.store.segments.table import NEVER
from diskbuffer.store.store import Store
from diskbuffer.store.system.files import Files, files_at
from diskbuffer.store.system.writer_lock import WriterLock, describe_holder, is_held, session

_RECOVERY_SECONDS = 60.0  # that a reader waits for a writer that recovers a store


def open_store(
    root: Path | Files,
    *,
    writable: bool,
    recover: bool = True,
    back_to: str | None = None,
    lock: WriterLock | None = None,
    drop_lost: Callable[[Store], None] = lambda _: None,
) -> Store:
    """Open a store to read, or to write, too, for which it takes the writer's lock, or has `lock`.

    What the last writer left is recovered. Without `recover` it is as it was left, whatever that is: to be checked, and repaired.
    With `back_to` the store goes back to a mark first. ``drop_lost(store)`` is called where a power loss took rows, and drops
    what others keep of these.

    Raises
    ------
    LockedError
        Another process writes to it; or a reader waited in vain for one that recovers it.
    CorruptionError
        It is damaged.
    """
    files = files_at(root)
    layout, slots = directory.read_metadata(files)
    directory.refuse_links(files, layout, slots, SEGMENTS)
    if writable:
        store = _open_to_write(files, recover, back_to, lock, drop_lost)
    else:
        store = _open_to_read(files, recover, layout.removals)
    forks.pause(store)
    return store


# To write


def _open_to_write(
    files: Files, recover: bool, back_to: str | None, lock: WriterLock | None, drop_lost: Callable[[Store], None]
) -> Store:
    lock = lock or WriterLock(files)
    try:
        if back_to is not None:
            marks.go_back(files, back_to)
        else:
            marks.finish(files)
        marks.clear_up(files)
        store = Store(files, writer_lock=lock)
        if recover:
            last = _recover_to_write(store, drop_lost)
            store.find_free(known=last is LastShutdown.CLEAN)
            if store.layout.removed:  # a crash came in between
                store.finish_removing()
            directory.remove_strays(files, store.layout, store.table.slots, store.free)
            tail_copy.remove_others(files, store.durability.tail)
    except BaseException as error:
        marks.advise_how_to_make_room(error, files)
        lock.release()
        raise
    return store


def _recover_to_write(store: Store, drop_lost: Callable[[Store], None]) -> LastShutdown:
    """Have the store be what is visible of that which the last writer left, and return how that ended."""
    last, synced = _how_it_was_left(store)
    noted, killed = values_left(store.durability.state, store.files)
    store.episode_values.recover(noted, killed=killed)
    visible = visible_rows(store)
    begins = visible_from(store, visible)
    if last is LastShutdown.POWER_LOSS or (begins != store.begins).any():  # where words may be torn
        store.go_back_to(begins)
    if last is LastShutdown.POWER_LOSS:
        going_back.put_back_tail(store, visible, lost_power=True)
        going_back.go_back(store, visible)
        drop_lost(store)
        store.episode_values.drop_lost(store.heads(visible))
        store.durability.begin(store.heads(visible), store.episode_values.note)
        store.begin_session()
        return last
    if last is LastShutdown.CLEAN:
        going_back.put_back_tail(store, visible, lost_power=False)
    else:
        resume_writing.settle_newest(store, visible)
        for path in store.layout.derived:  # which the disk may not have, nor the table the checksums of
            slots = np.flatnonzero(store.table.column("length") * (store.table.checksums(path) != NEVER))
            store.durability.written.update((path, slot) for slot in slots.tolist())
    store.durability.begin(np.array(synced, np.int64), noted)  # what came after that is not on the disk
    store.keep_rows_of_readers()
    return last


def _how_it_was_left(store: Store) -> tuple[LastShutdown, tuple[int, ...]]:
    state = store.durability.state = State.read(store.files, store.layout)
    if state is not None and state.is_copied(store.files):
        raise CorruptionError(
            f"{store.root} was copied while a buffer wrote to it, so its files are of different moments. Take a snapshot instead:"
            " `diskbuffer snapshot PATH TO`. `diskbuffer check --repair` saves what the last flush had"
        )
    return how_it_was_left(state, store.files, store.layout.streams)


# To read


def _open_to_read(files: Files, recover: bool, removals: int) -> Store:
    """Open a store to read, of which so many columns were ever removed when its description was read."""
    while True:
        before = session(files)
        try:
            source, way_back = _follow_the_way_back(files)
            store = Store(source, way_back=way_back)
            if not recover:
                return store
            _recover_to_read(store)
            if session(files) == before:
                return store
        except (CorruptionError, EvictedError):
            known, removals = removals, directory.read_metadata(files)[0].removals
            if session(files) == before and removals == known:
                raise
            continue
        store.close()  # somebody has opened it for writing meanwhile, who may have changed what was looked at


def _recover_to_read(store: Store) -> None:
    """Show the rows that are visible, and change nothing; a writer that lives knows what it writes."""
    if _is_written_to(store):
        store.durability.state = State.read(store.files, store.layout)
        return
    last, _ = _how_it_was_left(store)
    visible = visible_rows(store)
    if last is LastShutdown.POWER_LOSS:
        store.show_only(visible, visible_from(store, visible))  # as the next writer has it
        going_back.show_tail(store, visible)


def _follow_the_way_back(files: Files) -> tuple[Files, WayBack | None]:
    """Read the mark that a store is going back to, where its writer died on the way; wait for one that lives."""
    begun = time.monotonic()
    while (origin := Origin.read(files)) is not None and origin.back_to is not None:
        if not is_held(files):
            return marks.find(files, origin.back_to), (files, origin)
        if time.monotonic() - begun > _RECOVERY_SECONDS:
            raise LockedError(f"{files.root} is going back to a mark, which takes long; try again later")
        time.sleep(0.01)
    return files, None


def _is_written_to(store: Store) -> bool:
    """Return whether there is a living writer; wait for one that is still looking at what the last has left, or is closing."""
    begun, files = time.monotonic(), store.files
    while (held := is_held(files)) is not False:
        state = State.read(files, store.layout)
        if held is None:
            if state is not None and state.clean:
                return False
            raise LockedError(
                f"{store.root} was not closed, and whether somebody is writing to it cannot be known, as its file system has "
                f"no locks: it was opened for writing last by {describe_holder(files)}. Close it there; or, if nobody "
                "writes any more, copy it to a local disk and open the copy"
            )
        if state is not None and not state.clean and state.boot == files.boot_id():
            return True
        if time.monotonic() - begun > _RECOVERY_SECONDS:
            raise LockedError(f"{store.root} is being recovered by its writer, which takes long; try again later")
        time.sleep(0.01)
    return False
