"""The process that a buffer lives in: threads, forks, signals, progress bars."""
