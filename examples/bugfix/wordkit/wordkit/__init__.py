"""Words, numbers and intervals: small functions with tests, for bug-fixing tasks without a download."""

__version__ = "1.0"
