"""The journal, and every number that is derived from it. Loads no torch."""
