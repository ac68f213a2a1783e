"""What can be found out about a store, as plain values: for a command line, a notebook, or a page to show."""
