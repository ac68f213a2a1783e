"""The commands of ``diskbuffer``: plain functions that show what `diskbuffer.inspect` finds out, and return an exit code."""
