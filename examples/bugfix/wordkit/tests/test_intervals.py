import unittest

from wordkit import intervals


class TestIntervals(unittest.TestCase):
    def test_overlap(self):
        self.assertTrue(intervals.overlap((1, 3), (3, 5)))
        self.assertFalse(intervals.overlap((1, 2), (3, 5)))
        self.assertTrue(intervals.overlap((1, 9), (3, 5)))

    def test_merge(self):
        self.assertEqual(intervals.merge([(5, 7), (1, 3), (2, 4)]), [(1, 4), (5, 7)])
        self.assertEqual(intervals.merge([(1, 9), (2, 3)]), [(1, 9)])

    def test_intervals_that_touch_are_merged(self):
        self.assertEqual(intervals.merge([(1, 2), (2, 3)]), [(1, 3)])

    def test_length(self):
        self.assertEqual(intervals.length([(1, 3), (2, 5), (7, 8)]), 5)

    def test_gaps(self):
        self.assertEqual(intervals.gaps([(2, 3), (5, 6)], 1, 8), [(1, 2), (3, 5), (6, 8)])
        self.assertEqual(intervals.gaps([(0, 9)], 1, 8), [])


class TestCounter(unittest.TestCase):
    def test_how_many_hold_a_number(self):
        counter = intervals.Counter()
        counter.add(1, 3)
        counter.add(5, 2)
        self.assertEqual([counter.at(n) for n in range(7)], [0, 1, 2, 2, 1, 1, 0])


if __name__ == "__main__":
    unittest.main()
