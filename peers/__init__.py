"""The peers' own tests, run against our classes: ``python -m peers sb3 CHECKOUT``. See docs/adapters.md for what came of it."""
