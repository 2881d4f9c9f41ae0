"""Words, numbers and intervals: small functions with tests."""
