"""``python -m diskbuffer``: the command, where it is not on the path."""

import sys

from diskbuffer.commands.cli import main

sys.exit(main())
