from wordmill import count_words, initials, is_palindrome, plural, shorten, slug, wrap


def test_slug():
    assert slug("Hello World") == "hello-world"


def test_wrap_keeps_short_text_in_order():
    assert wrap("", 10) == []


def test_initials():
    assert initials("Ada Lovelace") == "AL"


def test_count_words():
    assert count_words("so so") == {"so": 2}


def test_shorten_leaves_short_text():
    assert shorten("ab", 5) == "ab"


def test_is_palindrome():
    assert is_palindrome("never odd or even")
    assert not is_palindrome("word")


def test_plural():
    assert plural(1, "item") == "1 item"
    assert plural(3, "item") == "3 items"
