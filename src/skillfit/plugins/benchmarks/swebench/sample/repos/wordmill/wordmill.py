"""Small tools for text."""

import re


def slug(title):
    """A title as part of an address: lower case, words joined by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower())


def wrap(text, width):
    """Lines of at most `width` characters, broken between words."""
    lines, line = [], ""
    for word in text.split():
        if len(line) + len(word) > width:
            lines.append(line.strip())
            line = ""
        line += word + " "
    return lines


def initials(name):
    """The first letters of a name, in upper case."""
    return "".join(part[0] for part in name.split(" ")).upper()


def count_words(text):
    """How often each word occurs, whatever its case."""
    counts = {}
    for word in re.findall(r"[a-z']+", text):
        counts[word] = counts.get(word, 0) + 1
    return counts


def shorten(text, limit):
    """The text, cut to `limit` characters with an ellipsis at the end."""
    if len(text) < limit:
        return text
    return text[:limit] + "…"


def is_palindrome(text):
    """Whether a text reads the same backwards, ignoring case, spaces and punctuation."""
    letters = text.lower().replace(" ", "")
    return letters == letters[::-1]


def plural(count, word):
    """`1 item`, `2 items`."""
    return f"{count} {word}" + ("s" if count > 1 else "")
