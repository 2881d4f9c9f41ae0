"""Throughput matching: what a run will do, before it runs. Here: the simulated driver."""
