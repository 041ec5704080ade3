"""One family of errors. Each message says what is wrong, with which value, and what to do.

The command line prints the message alone: a traceback is for our bugs, not for a user's typo.
"""

from collections.abc import Iterable, Sequence


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the first of some names as a message shows them, or `none`."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "") or "none"


class OutlastError(Exception):
    """Something that a user, a file or a machine can cause."""


class ConfigError(OutlastError):
    """The experiment file cannot be used as it is. Carries every problem, not only the first."""

    def __init__(self, problems: Iterable[str], source: str = "the configuration") -> None:
        self.problems = list(problems)
        self.source = source
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' if count > 1 else ''} in {source}:\n{lines}")

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[list[str], str]]:
        return type(self), (self.problems, self.source)


class PlaceError(ConfigError):
    """A device is missing for this rank, of which no other rank can tell."""


class DataError(OutlastError):
    """The data do not fit what the configuration says of them."""


class ModelError(OutlastError):
    """The network cannot be built, or gives logits that the loss cannot use."""


class CheckpointError(OutlastError):
    """A state or model file that cannot be used: absent, truncated, altered or of another kind."""


class LostClaimError(OutlastError):
    """Another attempt has taken the run folder over, and this one must not write there any more."""


class LostRankError(OutlastError):
    """Another rank has ended, and this one cannot go on alone. Why, is in the line of that rank."""

    def __init__(self) -> None:
        super().__init__("another rank has ended, and this one with it")


class NonFiniteLossError(OutlastError):
    """The main loss became NaN or infinite. Deterministic: the same run will fail the same way."""


class RepeatedFailureError(OutlastError):
    """The attempt would end in the error of an earlier one: refused before the first step."""


class InterruptedRunError(OutlastError):
    """The run stopped on a signal, with its state saved. Not a failure: start it again."""
