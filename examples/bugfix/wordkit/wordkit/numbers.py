"""Whole numbers."""


def clamp(value, low, high):
    """Return a value, or the bound that it is beyond."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def digits(number):
    """Return the decimal digits of a number that is not negative."""
    found = []
    while number >= 10:
        found.append(number % 10)
        number = number // 10
    found.append(number)
    return found[::-1]


def gcd(a, b):
    """Return the greatest common divisor of two numbers, 0 for two zeros."""
    while b != 0:
        a, b = b, a % b
    return a


def is_prime(number):
    """Say whether a number is prime."""
    if number < 2:
        return False
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return True


def mean(values, empty=None):
    """Return the mean of values, `empty` without any."""
    values = list(values)
    if not values:
        return empty
    return sum(values) / len(values)


def median(values):
    """Return the middle of sorted values, or the mean of the two in the middle."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def roman(number):
    """Return a number from 1 to 3999 in Roman numerals."""
    signs = [(1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC")]
    signs += [(50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    text = ""
    for value, sign in signs:
        while number >= value:
            text += sign
            number -= value
    return text


def steps(start, stop, step=1):
    """Return the numbers from start up to stop, which is not among them."""
    found = []
    while start < stop:
        found.append(start)
        start += step
    return found
