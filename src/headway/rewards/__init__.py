"""Rewards: verifiers, and the rule that a score is a finite number."""
