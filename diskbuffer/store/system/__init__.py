"""The operating system: files, memory maps, locks. Tests replace what is here."""
