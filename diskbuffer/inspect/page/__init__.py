"""The page of a store: a small server on loopback, its feeds as plain values and PNGs, and what a browser shows of them."""
