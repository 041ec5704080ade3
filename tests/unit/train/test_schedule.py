import math
import random

import pytest
import torch

from outlast.sections import TrainingSection
from outlast.train.schedule import Constant, Cosine, ReduceOnPlateau, build_schedule


def test_constant_is_the_base_rate() -> None:
    """`none` gives the base rate in each epoch, whatever it observes."""
    schedule = Constant(0.3)
    schedule.observe(None)
    assert [schedule.rate(epoch) for epoch in (0, 1, 99)] == [0.3, 0.3, 0.3]
    assert schedule.state_dict() == {}


def test_cosine_by_hand() -> None:
    """Over 4 epochs from 1: 1, (2 + sqrt 2)/4, 1/2, (2 - sqrt 2)/4, with a floor of 1e-6."""
    schedule = Cosine(1.0, 4)
    by_hand = [1.0, 0.85355339059327, 0.5, 0.14644660940673, 0.0]
    for epoch, share in enumerate(by_hand):
        assert schedule.rate(epoch) == pytest.approx(1e-6 + (1 - 1e-6) * share, abs=1e-14)


def test_cosine_stays_at_its_floor() -> None:
    """At its end and after it the rate is 1e-6 of the base, and never rises again."""
    schedule = Cosine(0.02, 10)
    assert [schedule.rate(epoch) for epoch in (10, 11, 50)] == pytest.approx([2e-8] * 3, rel=1e-9)
    rates = [schedule.rate(epoch) for epoch in range(15)]
    assert rates == sorted(rates, reverse=True)


def plateau(lower_is_better: bool, patience: int = 2) -> ReduceOnPlateau:
    """A schedule from 1, halved."""
    return ReduceOnPlateau(1.0, factor=0.5, patience=patience, lower_is_better=lower_is_better)


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("patience", [0, 1, 3])
def test_plateau_equals_torch(mode: str, patience: int) -> None:
    """Over random sequences the rate is that of torch's scheduler with an absolute threshold 0."""
    dice = random.Random(patience)
    for _ in range(20):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        reference = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode, 0.5, patience, threshold=0, threshold_mode="abs", eps=0
        )
        schedule = plateau(mode == "min", patience)
        for epoch in range(25):
            value = dice.randrange(8) / 8  # coarse: ties occur
            reference.step(value)
            schedule.observe(value)
            assert schedule.rate(epoch) == optimizer.param_groups[0]["lr"]


def test_a_flat_metric_fires() -> None:
    """A metric that never moves reduces the rate after `patience` epochs of grace (story 40)."""
    schedule = plateau(lower_is_better=False)
    rates = []
    for epoch in range(8):
        schedule.observe(0.7)
        rates.append(schedule.rate(epoch))
    assert rates == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_an_undefined_metric_is_no_improvement() -> None:
    """None counts as a bad epoch, before and after a defined value."""
    first, later = plateau(False, 1), plateau(False, 1)
    for value in (None, None):
        first.observe(value)
    assert first.rate(0) == 0.5
    for value in (0.2, None, None):
        later.observe(value)
    assert later.rate(0) == 0.5
    later.observe(0.3)
    assert later.state_dict()["best"] == 0.3


def test_plateau_continues_from_its_state() -> None:
    """Loaded in the middle of a sequence, it goes on as if nothing had happened (story 9)."""
    values = [0.1, 0.2, 0.2, 0.2, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    for cut in range(len(values)):
        straight, before, after = (plateau(False, 1) for _ in range(3))
        for value in values:
            straight.observe(value)
        for value in values[:cut]:
            before.observe(value)
        after.load_state_dict(before.state_dict())
        for value in values[cut:]:
            after.observe(value)
        assert after.state_dict() == straight.state_dict()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("none", Constant), ("cosine", Cosine), ("reduce_on_plateau", ReduceOnPlateau)],
)
def test_the_config_chooses(name: str, kind: type) -> None:
    """Each name of the config gives its schedule, which starts at the base rate."""
    section = TrainingSection(scheduler={"name": name}, learning_rate=0.25)
    schedule = build_schedule(section, lower_is_better=False)
    assert isinstance(schedule, kind)
    assert schedule.rate(0) == 0.25


def test_the_config_sets_plateau() -> None:
    """Factor and patience of the config, and the direction of the metric, are those used."""
    scheduler = {"name": "reduce_on_plateau", "patience": 0, "factor": 0.1}
    schedule = build_schedule(TrainingSection(scheduler=scheduler, learning_rate=1), True)
    for value in (5.0, 4.0, 4.5):
        schedule.observe(value)
    assert schedule.rate(3) == 0.1


def test_warmup_is_a_ramp_before_every_schedule() -> None:
    """Base x epoch / warm-up for epochs from 1; then the schedule, cosine over what is left."""
    for name in ("none", "cosine", "reduce_on_plateau"):
        section = TrainingSection.model_validate(
            {"learning_rate": 0.4, "epochs": 8, "warmup_epochs": 4, "scheduler": {"name": name}}
        )
        schedule = build_schedule(section, lower_is_better=False)
        rates = [schedule.rate(epoch) for epoch in range(8)]
        assert rates[:4] == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert rates[4] == pytest.approx(0.4)
        if name == "cosine":
            half = [(1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
            assert rates[4:] == pytest.approx([0.4 * (1e-6 + (1 - 1e-6) * h) for h in half])
        else:
            assert rates[4:] == [0.4] * 4


def test_a_plateau_behind_a_warmup_keeps_its_state() -> None:
    """What is seen on the ramp does not count, and no kill starts the ramp anew."""
    section = TrainingSection.model_validate(
        {"warmup_epochs": 2, "scheduler": {"name": "reduce_on_plateau", "patience": 0}}
    )
    one, other = (build_schedule(section, lower_is_better=False) for _ in range(2))
    for value in (0.9, 0.9, 0.5, 0.5):
        one.observe(value)
    other.load_state_dict(one.state_dict())
    for schedule in (one, other):
        assert schedule.rate(4) == pytest.approx(section.learning_rate / 2), "0.9 was on the ramp"
        schedule.observe(0.5)
        assert schedule.rate(5) == pytest.approx(section.learning_rate / 4)
