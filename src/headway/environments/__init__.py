"""Environments: tasks, rollouts, scores; the loop that runs them; the built-in ones. No torch."""
