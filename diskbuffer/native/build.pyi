SOURCES: str  # SHA-256 of the sources
