"""Several writers' stores under one directory, which are read as one."""
