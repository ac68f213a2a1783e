"""A package, as others install one of this name, which would be found in place of a directory that is none."""
