"""Ctrl-C at any instruction by which the main thread begins another, or waits for it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from diskbuffer.runtime import threads
from diskbuffer.runtime.signals import Interruptible
from tests.support.storm import Strike


def handing_over(apart: int) -> None:
    """Strike at instructions by which threads begin, and give back what they did: none of them waits for a lock from then on."""
    for file in (threading.__file__, concurrent.futures.thread.__file__, concurrent.futures._base.__file__):
        at, struck, interrupted = 0, True, 0
        while struck:
            at += apart
            strike, done = Strike(at, signal.SIGINT, file), list[int]()
            with ThreadPoolExecutor(1) as pool:
                try:
                    sys.settrace(strike.trace)
                    threads.start(done.append, 1, name="one")
                    threads.result(threads.submit(pool, lambda: time.sleep(0.001)))
                    threads.do_all(done.append, range(2, 4), 1, "two")
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    sys.settrace(None)
                struck = strike.instructions >= at
                pool.submit(done.append, 4).result()
            for thread in set(threading.enumerate()) - {threading.current_thread()}:
                thread.join()
            assert done[-1] == 4
            assert interrupted or not struck
        assert interrupted > 10


@pytest.mark.some(1)
def test_no_thread_waits_forever_after_a_signal_while_it_was_begun_or_waited_for(amount: Callable[[int, int], int]) -> None:
    command = [sys.executable, "-m", "tests.runtime.test_threads", str(amount(13, 1))]  # one that a tracer raises leaves traces
    assert subprocess.run(command, check=False, cwd=Path(__file__).parents[2]).returncode == 0


def test_an_interrupt_ends_what_threads_were_asked_for_before_all_of_it_is_done() -> None:
    done = list[int]()

    def work(n: int) -> None:
        if n == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        else:
            time.sleep(0.1)
        done.append(n)

    arounds: tuple[contextlib.AbstractContextManager[None], ...] = (contextlib.nullcontext(), Interruptible())  # as of flush
    for n, around in enumerate(arounds):
        done.clear()
        with pytest.raises(KeyboardInterrupt), around:
            threads.do_all(work, range(40), 1, f"one-{n}")
        assert len(done) < 20


if __name__ == "__main__":
    handing_over(int(sys.argv[1]))
