"""Headway: asynchronous reinforcement learning for language-model agents, kept matched."""

__version__ = "0.1.0"
