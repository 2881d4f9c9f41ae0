"""Composes the rooms' settings into one Config: TOML, overrides, validation, printing. No torch."""
