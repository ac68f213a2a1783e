"""Check the values of episodes."""

from __future__ import annotations

from diskbuffer.store.checking.findings import LOOKS, Finder, Finding
from diskbuffer.store.checking.opened import Opened
from diskbuffer.store.checking.report import Problem
from diskbuffer.store.last_writer import State, values_left


def find_damaged_values(opened: Opened) -> Finder[None]:
    """Find damaged lines; a fix, which there is always, leaves those that are whole, of episodes that are there by then."""
    store = opened.store
    for _ in range(LOOKS):
        state = State.read(store.files, store.layout)
        noted, unflushed = values_left(state, store.files)
        try:
            noted, what = store.episode_values.damage(noted, unflushed=unflushed)
        except FileNotFoundError:  # a writer has written it anew
            continue
        if what is None or State.read(store.files, store.layout) == state:
            break
    problems = () if what is None or noted is None else (Problem(store.root / noted.name, what),)
    yield Finding(problems, lambda: store.episode_values.repair(noted, store.heads()))
