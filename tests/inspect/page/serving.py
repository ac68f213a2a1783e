"""A server of a page in a process of its own, as the command starts it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PROGRAM = """
import sys
from pathlib import Path
from diskbuffer.inspect.page.serving import serve
serve(Path(sys.argv[1]), port=int(sys.argv[2]), browser=False)
"""


@contextlib.contextmanager
def served(path: Path, port: int = 0) -> Iterator[str]:
    """Serve a store's page; yield its address."""
    command = [sys.executable, "-c", PROGRAM, str(path), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            found = re.search(r"http://\S+", first)
            assert found, first + process.stdout.read()
            yield found[0]
        finally:
            process.terminate()
