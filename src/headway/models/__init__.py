"""Checkpoints: fetch, verify and load them; the tiny model that Headway makes itself."""
