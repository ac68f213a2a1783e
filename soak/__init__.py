"""Long campaigns that try to break what the library promises; not part of the package."""
