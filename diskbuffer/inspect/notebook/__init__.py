"""What a notebook shows of a buffer: HTML, film strips, movies and plots, and tables for pandas."""
