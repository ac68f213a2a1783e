"""The command ``diskbuffer``: which commands there are, and what becomes of errors. A command is imported when it is called."""

from __future__ import annotations

import gc
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from diskbuffer import __version__
from diskbuffer.commands.output import FAILED, complain
from diskbuffer.errors import DiskBufferError
from diskbuffer.plugin import for_command_line

if TYPE_CHECKING:
    from cyclopts import App

INTERRUPTED = 130

# Where each is, and what the list of commands says of it.
COMMANDS = {
    "info": ("diskbuffer.commands.info:info", "What a store holds: columns, steps, episodes, disk, who writes."),
    "episodes": ("diskbuffer.commands.episodes:episodes", "A table of episodes, filtered and sorted."),
    "show": ("diskbuffer.commands.show:show", "Frames, rewards and actions of an episode; PNG, GIF or MP4."),
    "view": (
        "diskbuffer.commands.view:view",
        "A page in the browser: episodes, a player, what is sampled; also over ssh.",
    ),
    "stats": ("diskbuffer.commands.stats:stats", "Distributions of all values, and what looks wrong with them."),
    "plan": ("diskbuffer.commands.plan:plan", "What a training will take of the disk, from a trial or a store."),
    "check-env": (
        "diskbuffer.commands.check_env:check_env",
        "Whether an environment's steps come out as they went in; what is odd.",
    ),
    "check": ("diskbuffer.commands.check:check", "Verify every structure and every checksum, and repair what can be."),
    "snapshot": ("diskbuffer.commands.snapshot:snapshot", "Copy a store, beside a training that writes to it, too."),
    "copy": ("diskbuffer.commands.copy:copy", "A store from another: some episodes or columns, other names or compression."),
    "merge": ("diskbuffer.commands.merge:merge", "Several stores as one."),
    "tag": ("diskbuffer.commands.tag:tag", "Tag episodes, in the store itself."),
    "import": ("diskbuffer.commands.import_:import_", "Make a store of what another program has written."),
    "export": ("diskbuffer.commands.export:export", "Write a store's episodes in another program's format."),
    "marks": ("diskbuffer.commands.marks:marks", "List a store's marks, or remove one."),
    "remove-writer": ("diskbuffer.commands.remove_writer:remove_writer", "Remove the store of one of several writers."),
}
GROUP = "diskbuffer.commands"  # of entry points, each a function of another package: "package.module:function"


def _unless_false(default: Any) -> Any:
    """Return a default as help shows it; None of a flag, which is left out by default."""
    return None if default is False else default


def build(command: str = "") -> App:
    """Return the application, for a command.

    What the command's `--help` says is its docstring, of which the list of all commands has a sentence. The commands of other
    packages are imported, and so are in it only where the command is none of ours.
    """
    from cyclopts import App, Parameter

    app = App(
        "diskbuffer",
        help="Replay buffers on disk: look into them, check them, copy them.",
        version=f"diskbuffer {__version__}",
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(negative=(), json_list=False, json_dict=False, show_default=_unless_false),
        help_epilogue=(
            "Exit codes: 0 all is well, 1 something is wrong with a store or an environment, or would not fit, "
            "2 it could not be looked at."
        ),
    )
    for place, (name, (where, what)) in enumerate(COMMANDS.items()):
        app.command(where, name=name, help=None if name == command else what, sort_key=place)
    for point in entry_points(group=GROUP) if command not in COMMANDS else ():
        try:
            app.command(point.load(), name=point.name, sort_key=len(COMMANDS))
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, ours work
            complain(f"the command {point.name} of another package cannot be loaded: {error}")
    app.register_install_completion_command()
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code. Whatever is wrong with what was given, or with a store, is told in a sentence."""
    if arguments is None:  # as a command: what it imports stays, and need not be looked through for garbage again and again
        gc.set_threshold(100_000)
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with for_command_line():
            result = _parsed(tokens)
    except BrokenPipeError:  # the reader has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  for the interpreter flushes it when it ends
        return 0
    except (DiskBufferError, OSError) as error:
        complain(_message(tokens[0] if tokens else "", error))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return result if isinstance(result, int) else 0


def _parsed(tokens: Sequence[str]) -> Any:
    from cyclopts import CycloptsError

    try:
        return build(tokens[0] if tokens else "")(tokens, exit_on_error=False, print_error=True, result_action="return_value")
    except CycloptsError:
        return FAILED


def _function(command: str) -> Callable[..., Any]:
    """Return what a command calls."""
    module, name = COMMANDS[command][0].split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _message(command: str, error: Exception) -> str:
    """Return an error's message, in which the argument that does not fit is an option of the command, where it has that."""
    option = getattr(error, "option", "")
    if command not in COMMANDS or option not in inspect.signature(_function(command)).parameters:
        return str(error)
    return str(error).replace(option, f"--{option.replace('_', '-')}", 1)
