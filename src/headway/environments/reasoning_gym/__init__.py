"""Datasets of the library reasoning-gym as environments `reasoning-gym:NAME`."""
