"""What the trainer says."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The log lines of the test, each behind its level."""
    lines: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{record.levelname} {record.getMessage()}")

    logger, handler = logging.getLogger("outlast"), Collector()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(level)
