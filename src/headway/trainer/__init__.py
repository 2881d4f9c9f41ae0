"""The trainer: rows in, one optimizer step, weights and checkpoints out."""
