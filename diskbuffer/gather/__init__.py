"""From steps to arrays: a plan of which rows lie where, and the compiled kernel that brings them. Gets addresses, not files."""
