import pytest

from skillfit.errors import InputError
from skillfit.tasks.function import load_object


@pytest.mark.parametrize(
    ("text", "said"), [("x = 1\ny = 1 / 0\n", r"mine\.py:2: ZeroDivisionError"), ("def f(:\n", r"mine\.py:1: SyntaxError")]
)
def test_a_file_of_the_persons_own_that_breaks_is_named_with_its_line(tmp_path, text, said):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=said):
        load_object("mine.py:evaluate", tmp_path)


def test_a_file_that_was_mended_loads(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("1 / 0\n")
    with pytest.raises(InputError):
        load_object("mine.py:answer", tmp_path)
    file.write_text("answer = 42  # mended\n")
    assert load_object("mine.py:answer", tmp_path) == 42
