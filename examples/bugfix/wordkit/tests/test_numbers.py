import unittest

from wordkit import numbers


class TestNumbers(unittest.TestCase):
    def test_clamp(self):
        self.assertEqual([numbers.clamp(value, 2, 5) for value in (1, 2, 4, 5, 6)], [2, 2, 4, 5, 5])

    def test_digits(self):
        self.assertEqual(numbers.digits(1024), [1, 0, 2, 4])
        self.assertEqual(numbers.digits(10), [1, 0])
        self.assertEqual(numbers.digits(0), [0])

    def test_gcd(self):
        self.assertEqual(numbers.gcd(12, 18), 6)
        self.assertEqual(numbers.gcd(7, 0), 7)

    def test_primes(self):
        self.assertEqual([n for n in range(20) if numbers.is_prime(n)], [2, 3, 5, 7, 11, 13, 17, 19])

    def test_a_square_of_a_prime(self):
        self.assertFalse(numbers.is_prime(49))

    def test_mean(self):
        self.assertEqual(numbers.mean([1, 2, 6]), 3)
        self.assertIsNone(numbers.mean([]))
        self.assertEqual(numbers.mean([], empty=0), 0)

    def test_median(self):
        self.assertEqual(numbers.median([3, 1, 2]), 2)
        self.assertEqual(numbers.median([4, 1, 2, 3]), 2.5)

    def test_roman(self):
        self.assertEqual([numbers.roman(n) for n in (1, 4, 9, 14, 40)], ["I", "IV", "IX", "XIV", "XL"])
        self.assertEqual(numbers.roman(1994), "MCMXCIV")

    def test_steps(self):
        self.assertEqual(numbers.steps(0, 3), [0, 1, 2])
        self.assertEqual(numbers.steps(1, 6, 2), [1, 3, 5])


if __name__ == "__main__":
    unittest.main()
