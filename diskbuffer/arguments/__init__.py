"""What callers give, checked, and how messages say it."""
