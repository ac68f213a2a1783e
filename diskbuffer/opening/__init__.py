"""From a path to an open store and back: who may do what with it, and what is known of one that is not open."""
