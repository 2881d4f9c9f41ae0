import unittest

from wordkit import words


class TestWords(unittest.TestCase):
    def test_palindromes(self):
        self.assertTrue(words.is_palindrome("Never odd or even"))
        self.assertFalse(words.is_palindrome("odd"[:2]))

    def test_shorten(self):
        self.assertEqual(words.shorten("abcdef", 6), "abcdef")
        self.assertEqual(words.shorten("abcdefg", 6), "abc...")
        self.assertEqual(words.shorten("abcdefg", 3, "~"), "ab~")

    def test_wrap(self):
        self.assertEqual(words.wrap("one two three", 7), ["one two", "three"])
        self.assertEqual(words.wrap("one two three", 6), ["one", "two", "three"])
        self.assertEqual(words.wrap("", 6), [])

    def test_a_word_longer_than_a_line(self):
        self.assertEqual(words.wrap("a longest b", 3), ["a", "longest", "b"])

    def test_count_words(self):
        self.assertEqual(words.count_words("The cat the dog"), {"the": 2, "cat": 1, "dog": 1})

    def test_longest(self):
        self.assertEqual(words.longest(["a", "bcd", "ef", "ghi"]), "bcd")
        self.assertIsNone(words.longest([]))

    def test_title(self):
        self.assertEqual(words.title("the lord of the rings"), "The Lord of the Rings")

    def test_indent(self):
        self.assertEqual(words.indent("a\n\nb"), "    a\n\n    b")
        self.assertEqual(words.indent("a", 1), " a")

    def test_rotate(self):
        self.assertEqual(words.rotate("xyz a!", 3), "abc d!")
        self.assertEqual(words.rotate(words.rotate("hello", 5), -5), "hello")


if __name__ == "__main__":
    unittest.main()
