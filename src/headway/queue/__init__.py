"""The scheduler: what enters the queue, what leaves it, and when. Pure and deterministic."""
