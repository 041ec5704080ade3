"""What was found: a word, what it is about, and what to do."""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

WIDTH = 80
INDENT = 6  # of what stands behind the word


@dataclass(frozen=True)
class Line:
    """One finding.

    Attributes:
        word: ``BAD`` costs a night, ``note`` is worth knowing.
        subject: What was looked at: a key, a program, a partition.
        found: Its value, and what follows from it.
        fix: What to do about it.
    """

    word: Literal["ok", "note", "BAD"]
    subject: str
    found: str
    fix: str = ""


def ok(subject: str, found: str) -> Line:
    """Return a line of what is as it should be."""
    return Line("ok", subject, found)


def note(subject: str, found: str, fix: str = "") -> Line:
    """Return a line of what is worth knowing."""
    return Line("note", subject, found, fix)


def bad(subject: str, found: str, fix: str) -> Line:
    """Return a line of what costs a night."""
    return Line("BAD", subject, found, fix)


def show(lines: Iterable[Line]) -> int:
    """Print lines as they come, and their number; return how many are BAD."""
    words = []
    for line in lines:
        words.append(line.word)
        _print(line.word, f"{line.subject}: {line.found}")
        if line.fix:
            _print("", f"fix: {line.fix}")
    count, notes = words.count("BAD"), words.count("note")
    noted = f", {notes} note{'s' if notes > 1 else ''}" if notes else ""
    print(f"\n{len(words)} checks, {count or 'none'} BAD{noted}", flush=True)
    return count


def _print(word: str, text: str) -> None:
    folded = textwrap.wrap(
        f"{word:<{INDENT}}{text}",
        WIDTH,
        subsequent_indent=" " * (INDENT + 2),
        break_on_hyphens=False,
        break_long_words=False,
    )
    print(*folded, sep="\n", flush=True)
