"""Serves rollouts to programs over the OpenAI API. No torch."""
