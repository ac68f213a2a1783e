"""What is called outside of Python: the C libraries, memory, checksums; and compiling."""
