from outlast.report.confusion import short_names
from outlast.report.wording import shorten, wrap_name


def test_short_name_is_one_line() -> None:
    """What fits is left alone."""
    assert wrap_name("a=1__b=2", 20) == ["a=1__b=2"]


def test_long_name_breaks_after_separators() -> None:
    """The lines together are the name, and none is too long."""
    name = "learning_rate=0.001__weight_decay=0.1__hidden=64"
    lines = wrap_name(name, 22)
    assert "".join(lines) == name
    assert max(map(len, lines)) <= 22


def test_too_many_lines_end_in_an_ellipsis() -> None:
    """A limit on lines shows that something is left out, within the width."""
    assert wrap_name("aaaa=1__bbbb=2__cccc=3", 8, max_lines=2) == ["aaaa=1__", "bbbb=2_…"]


def test_shortened_text_keeps_both_ends() -> None:
    """The middle goes: names differ at their ends more often than there."""
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert shorten("abcde", 5) == "abcde"


def test_classes_that_shorten_to_the_same_name_are_numbered() -> None:
    """Two classes never share a label in the figure."""
    base = "a long name of class {} of the experiment"
    names = short_names([base.format(1), base.format(2)])
    assert len(set(names)) == 2
    assert max(map(len, names)) <= 24
    assert short_names(["cat", "dog"]) == ["cat", "dog"]
