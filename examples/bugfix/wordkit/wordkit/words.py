"""Words and lines of text."""


def is_palindrome(text):
    """Say whether a text reads the same backwards, case and spaces left out."""
    letters = [letter.lower() for letter in text if not letter.isspace()]
    return letters == letters[::-1]


def shorten(text, width, mark="..."):
    """Return a text of at most `width` characters, its end replaced by a mark when it is longer."""
    if len(text) <= width:
        return text
    return text[: width - len(mark)] + mark


def wrap(text, width):
    """Return lines of at most `width` characters; a longer word has a line of its own."""
    lines = []
    line = ""
    for word in text.split():
        if not line:
            line = word
        elif len(line) + 1 + len(word) <= width:
            line = line + " " + word
        else:
            lines.append(line)
            line = word
    if line:
        lines.append(line)
    return lines


def count_words(text):
    """Return how often each word occurs, in lower case."""
    counts = {}
    for word in text.lower().split():
        counts[word] = counts.get(word, 0) + 1
    return counts


def longest(words):
    """Return the longest word, the first of several; None without words."""
    best = None
    for word in words:
        if best is None or len(word) > len(best):
            best = word
    return best


def title(text, small=("of", "the", "and")):
    """Return a text with capital words, but for small ones inside it."""
    words = text.lower().split()
    for index, word in enumerate(words):
        if index == 0 or word not in small:
            words[index] = word.capitalize()
    return " ".join(words)


def indent(text, depth=4):
    """Return a text whose lines that are not empty begin with spaces."""
    lines = text.splitlines()
    return "\n".join(" " * depth + line if line else line for line in lines)


def rotate(text, by):
    """Return a text with its letters moved along the alphabet."""
    moved = []
    for letter in text:
        if letter.islower():
            moved.append(chr((ord(letter) - ord("a") + by) % 26 + ord("a")))
        else:
            moved.append(letter)
    return "".join(moved)
