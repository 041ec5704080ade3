import pytest

from outlast.sections import TrainingSection
from outlast.train.selection import Selection, StoppingRule, resolve_metric


def follow(values: list[float | None], lower_is_better: bool = False) -> Selection:
    """Show a selection the metric of each epoch."""
    selection = Selection(lower_is_better)
    for epoch, value in enumerate(values, start=1):
        selection.update(epoch, value)
    return selection


def test_only_strictly_better_counts() -> None:
    """A tie with the best is no improvement, in either direction."""
    assert follow([0.5, 0.7, 0.7, 0.6]) == Selection(False, 2, 0.7, 2)
    assert follow([0.5, 0.3, 0.3, 0.4], True) == Selection(True, 2, 0.3, 2)


def test_update_tells_whether_it_is_the_best() -> None:
    """True for the first epoch and for each improvement, else False."""
    selection = Selection(False)
    assert [selection.update(i, v) for i, v in enumerate([0.1, 0.1, 0.2, 0.0], 1)] == [
        True,
        False,
        True,
        False,
    ]


def test_the_first_validated_epoch_always_counts() -> None:
    """An undefined first metric still gives best weights; undefined ones after it do not."""
    assert follow([None]) == Selection(False, 1, None, 0)
    assert follow([None, None, None]) == Selection(False, 1, None, 2)


def test_undefined_never_beats_defined() -> None:
    """None after a number is a bad epoch, and does not block later bests (story 11)."""
    assert follow([0.0, None]) == Selection(False, 1, 0.0, 1)
    assert follow([0.4, None, 0.5]) == Selection(False, 3, 0.5, 0)
    assert follow([9.0, None], True) == Selection(True, 1, 9.0, 1)


def test_defined_beats_undefined() -> None:
    """The first number is the best after undefined ones, however bad it is."""
    assert follow([None, None, 0.0]) == Selection(False, 3, 0.0, 0)
    assert follow([None, 99.0], True) == Selection(True, 2, 99.0, 0)


def test_a_selection_continues_from_its_state() -> None:
    """Counter and best survive; the first epoch after a resume overwrites nothing (story 10)."""
    before, after = follow([0.9, 0.1]), Selection(False)
    after.load_state_dict(before.state_dict())
    assert after.update(3, 0.8) is False
    assert after == Selection(False, 1, 0.9, 2)


def test_the_metric_auto() -> None:
    """`auto` is AUROC for two classes and macro F1 for more; a named metric is kept."""
    assert resolve_metric(TrainingSection(), 2) == "val_auc"
    assert resolve_metric(TrainingSection(), 3) == "val_f1"
    for metric in ("val_loss", "tpr_at_fpr:0.01"):
        assert resolve_metric(TrainingSection(selection_metric=metric), 2) == metric


@pytest.mark.parametrize(
    ("done", "since", "reason"),
    [
        (0, 0, None),
        (9, 2, None),
        (9, 3, "early_stopping"),
        (10, 0, "completed"),
        (10, 3, "completed"),
        (11, 0, "completed"),
    ],
)
def test_a_run_is_over_at_its_epochs_or_its_patience(
    done: int, since: int, reason: str | None
) -> None:
    """Ten epochs, or three without improvement; the former is the reason when both hold."""
    assert StoppingRule(10, 3, has_validation=True).reason(done, since) == reason


def test_patience_can_be_off() -> None:
    """Patience 0, or no validation, never stops a run early."""
    assert StoppingRule(10, 0, has_validation=True).reason(9, 9) is None
    assert StoppingRule(10, 3, has_validation=False).reason(9, 9) is None


# best at epoch 2, then three epochs without improvement
STALLED: list[float | None] = [0.1, 0.5, 0.4, 0.5, None]


@pytest.mark.parametrize(
    ("epochs", "patience", "allowed"),
    [
        (5, 0, True),  # the same
        (50, 0, True),  # extended
        (4, 0, False),  # shrunk below what was trained
        (50, 3, True),  # a run with this patience would stop exactly here
        (50, 4, True),
        (50, 2, False),  # it would have stopped after epoch 4
        (50, 1, False),
    ],
)
def test_a_state_is_used_when_the_rule_would_have_come_so_far(
    epochs: int, patience: int, allowed: bool
) -> None:
    """Changed epochs and patience continue a state, unless the run would have ended before it."""
    rule = StoppingRule(epochs, patience, has_validation=True)
    assert rule.allows(STALLED, lower_is_better=False) is allowed


def test_allows_looks_at_the_direction_of_the_metric() -> None:
    """A falling loss is improvement, a falling AUROC is not."""
    rule = StoppingRule(9, 1, has_validation=True)
    assert rule.allows([0.5, 0.4, 0.3], lower_is_better=True)
    assert not rule.allows([0.5, 0.4, 0.3], lower_is_better=False)


def test_nothing_trained_is_always_allowed() -> None:
    """A state within the first epoch fits each rule."""
    assert StoppingRule(1, 1, has_validation=True).allows([], lower_is_better=False)
