"""Names of runs and settings, cut to a width."""

from outlast.sweep import SEPARATOR


def wrap_name(name: str, width: int, max_lines: int | None = None) -> list[str]:
    """Break ``name`` after its separators into lines of at most ``width`` characters.

    A single ``key=value`` that is longer loses its middle: both its ends tell it apart. Beyond
    ``max_lines`` the last line ends in an ellipsis.
    """
    lines: list[str] = []
    parts = name.split(SEPARATOR)
    for position, part in enumerate(parts):
        word = part + (SEPARATOR if position < len(parts) - 1 else "")
        if lines and len(lines[-1]) + len(word) <= width:
            lines[-1] += word
        else:
            lines.append(shorten(word, width))
    if max_lines is not None and len(lines) > max_lines:
        lines = lines[:max_lines]
        lines[-1] = lines[-1][: width - 1] + "…"
    return lines


def shorten(text: str, width: int) -> str:
    """Return ``text`` with its middle replaced by an ellipsis where it exceeds ``width``."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"
