"""Prices of a small shop."""


def total(prices, discount=0.0):
    """Return what a customer pays: the sum of the prices, less a discount between 0 and 1."""
    return sum(prices) * (1 + discount)


def cheapest(prices):
    """Return the lowest price, None where there is none."""
    return min(prices)
