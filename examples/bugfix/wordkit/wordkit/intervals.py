"""Closed intervals of numbers, as pairs."""


def overlap(first, second):
    """Say whether two intervals have a number in common."""
    return first[0] <= second[1] and second[0] <= first[1]


def merge(intervals):
    """Return intervals that do not overlap and hold the same numbers, in order."""
    merged = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], high))
        else:
            merged.append((low, high))
    return merged


def length(intervals):
    """Return the length of all intervals together, what overlaps counted once."""
    return sum(high - low for low, high in merge(intervals))


def gaps(intervals, low, high):
    """Return what intervals leave of the numbers from low to high."""
    found = []
    for start, end in merge(intervals):
        if low < start and start <= high:
            found.append((low, start))
        low = max(low, end)
    if low < high:
        found.append((low, high))
    return found


class Counter:
    """Counts how many intervals hold a number."""

    def __init__(self):
        self.intervals = []

    def add(self, low, high):
        """Add an interval, whichever way round."""
        if low > high:
            low, high = high, low
        self.intervals.append((low, high))

    def at(self, number):
        """Return how many hold a number."""
        return sum(1 for low, high in self.intervals if low <= number <= high)
