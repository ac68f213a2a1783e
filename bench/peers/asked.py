"""Processes of other libraries, each in an environment of its own, which are asked by lines and answer in JSON."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def process(python: str, script: Path, *arguments: Any, variables: Mapping[str, str]) -> Iterator[Callable[[Any], Any]]:
    """Start a script with an interpreter; yield what asks it."""
    command, pipe = [python, str(script), *map(str, arguments)], subprocess.PIPE
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(variables)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment) as process:
        assert process.stdin is not None

        def ask(request: Any) -> Any:
            print(request, file=process.stdin, flush=True)
            answers = (line for line in process.stdout or () if line.startswith("> "))
            answer = next(answers, None)
            if answer is None:
                raise RuntimeError(f"{script.name} has ended, with {process.wait()}")
            return json.loads(answer[2:])

        try:
            yield ask
        finally:
            process.kill()


def missing(python: str | None, modules: str, option: str, variable: str) -> str:
    """Return why an interpreter cannot take part; nothing, if it can."""
    if not python:
        return f"give the interpreter of an environment that has it, as {option} or in {variable}"
    tried = subprocess.run([python, "-c", f"import {modules}"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["it cannot be imported"])[-1]
