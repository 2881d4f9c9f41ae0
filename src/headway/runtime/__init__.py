"""Wiring: the live driver, local worker processes, run directories. The only place that builds parts."""
