import math
from typing import Any

import pytest
import torch
from worker import RUNS, STUDIES

from outlast.data.sampling import epoch_order

Results = dict[int, list[dict[str, Any]]]
NAMES = sorted(RUNS)
WORLDS = (1, 2, 3)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
NUMBERS = ("train_loss", "val_loss", "val_auc", "val_f1")


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_weights_do_not_depend_on_the_ranks(
    results: Results, world_size: int, name: str, dtype: torch.dtype
) -> None:
    """Two and three ranks train the weights of one, up to rounding (stories 38 and 39)."""
    alone = results[1][0]["train"][f"{name} {dtype}"]["weights"]
    for rank in range(world_size):
        found = results[world_size][rank]["train"][f"{name} {dtype}"]["weights"]
        assert (found - alone).abs().max() / alone.abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_ranks_hold_equal_bits(results: Results, world_size: int, name: str) -> None:
    """After three epochs no weight differs between ranks in any bit."""
    first, *others = (
        rank["train"][f"{name} torch.float32"]["weights"] for rank in results[world_size]
    )
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_numbers_do_not_depend_on_the_ranks(
    results: Results, world_size: int, name: str
) -> None:
    """Losses and scores are equal up to rounding, accuracies exactly (story 35)."""
    alone = results[1][0]["train"][f"{name} torch.float64"]
    for rank in results[world_size]:
        found = rank["train"][f"{name} torch.float64"]
        for key in NUMBERS:
            columns = [run["history"][key] for run in (found, alone)]
            one, other = ([math.nan if v is None else v for v in column] for column in columns)
            assert one == pytest.approx(other, rel=1e-6, nan_ok=True)
        assert found["history"]["train_acc"] == alone["history"]["train_acc"]
        assert found["history"]["val_acc"] == alone["history"]["val_acc"]
        assert found["validation"] == pytest.approx(alone["validation"], rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world_size", WORLDS)
def test_every_row_is_trained_once_per_epoch(results: Results, world_size: int, name: str) -> None:
    """Over all ranks each epoch holds each training row once; none is dropped or padded."""
    train_rows, batch_size = RUNS[name][0], RUNS[name][3]["batch_size"]
    ranks = [rank["train"][f"{name} torch.float32"]["rows"] for rank in results[world_size]]
    for epoch in range(3):
        together = [row for rank in ranks for row in rank[epoch]]
        assert sorted(together) == list(range(train_rows))
        first = set(epoch_order(torch.arange(train_rows).numpy(), 0, epoch)[:batch_size].tolist())
        shares = [sum(row in first for row in rank[epoch]) for rank in ranks]
        assert max(shares) - min(shares) <= 1, "each batch is shared evenly"


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", sorted(STUDIES))
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_study_does_not_depend_on_the_ranks(
    results: Results, world_size: int, name: str, dtype: torch.dtype
) -> None:
    """Heads, masks, class weights and clipping: the weights and numbers of one rank (story 38)."""
    alone = results[1][0]["study"][f"{name} {dtype}"]
    for rank in results[world_size]:
        found = rank["study"][f"{name} {dtype}"]
        step = (found["gradient"] - alone["gradient"]).abs().max()
        assert step / alone["gradient"].abs().max() < TOLERANCE[dtype]
        distance = (found["weights"] - alone["weights"]).abs().max()
        assert distance / alone["weights"].abs().max() < 10 * TOLERANCE[dtype]
        for key in (*NUMBERS, "train_adv_loss", "train_reg_loss", "val_reg_loss"):
            columns = [run["history"][key] for run in (found, alone)]
            one, other = ([math.nan if v is None else v for v in column] for column in columns)
            assert one == pytest.approx(other, rel=1e-5, nan_ok=True)
        assert found["history"]["train_adv_acc"] == alone["history"]["train_adv_acc"]


@pytest.mark.parametrize("world_size", [2, 3])
def test_dropout_differs_between_ranks_and_steps(results: Results, world_size: int) -> None:
    """No two ranks or steps drop the same values."""
    masks = [tuple(mask) for rank in results[world_size] for mask in rank["dropout"]]
    assert len(masks) == 3 * world_size
    assert len(set(masks)) == len(masks)


@pytest.mark.parametrize("world_size", [2, 3])
def test_running_statistics_are_those_of_rank_0(results: Results, world_size: int) -> None:
    """After each step all ranks have rank 0's buffers, to the bit, and equal weights."""
    ranks = [rank["batch_norm"] for rank in results[world_size]]
    for step in range(2):
        for other in ranks[1:]:
            assert torch.equal(other["reduced"][step], ranks[0]["own"][step])
            assert not torch.equal(other["own"][step], ranks[0]["own"][step])
        assert torch.equal(ranks[0]["reduced"][step], ranks[0]["own"][step])
    assert all(torch.equal(rank["weights"], ranks[0]["weights"]) for rank in ranks)
    assert all(rank["counters"] == [2] for rank in ranks)


@pytest.mark.parametrize("world_size", WORLDS)
def test_rows_are_gathered_in_the_order_of_the_ranks(results: Results, world_size: int) -> None:
    """Unequal and empty shares, of any shape and dtype, come together on every rank."""
    shares = ([4, 0, 1], [0, 0, 2], [0, 0, 0], [1, 2, 3])
    expected = [
        [rank for rank, size in enumerate(sizes[:world_size]) for _ in range(size)]
        for sizes in shares
    ] * 3
    for rank in results[world_size]:
        found = rank["collectives"]
        for rows, numbers in zip(found["rows"], expected, strict=True):
            assert [float(row.flatten()[0]) for row in rows] == numbers
        assert [tuple(rows.shape[1:]) for rows in found["rows"][::4]] == [(), (3,), (2, 2)]
        assert found["integers"].tolist() == [i for size in range(world_size) for i in range(size)]


@pytest.mark.parametrize("world_size", [2, 3])
def test_buffers_of_any_dtype_become_those_of_rank_0(results: Results, world_size: int) -> None:
    """Also of those that a backend cannot add up; sparse ones stay as they are."""
    expected = results[1][0]["odd_buffers"]
    assert len(expected["reduce"]) == 18
    for rank in results[world_size]:
        assert rank["odd_buffers"] == expected


@pytest.mark.parametrize("world_size", WORLDS)
def test_small_collectives(results: Results, world_size: int) -> None:
    """Gather keeps the order of the ranks, broadcast is rank 0's, sum is over all."""
    for rank in results[world_size]:
        found = rank["collectives"]
        assert found["gather"] == [{"rank": number} for number in range(world_size)]
        assert found["broadcast"] == "from 0"
        assert found["sum"] == [world_size, sum(range(world_size))]


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_signal_of_one_rank_stops_all_at_one_step(results: Results, world_size: int) -> None:
    """A signal to the last rank alone stops every rank after the same step (story 5)."""
    ranks = [rank["resumed"] for rank in results[world_size]]
    assert {rank["steps"] for rank in ranks} == {6}
    assert {rank["message"].partition(": ")[2] for rank in ranks} == {
        "interrupted in epoch 2 after step 2 of 4: the state is saved, start the run again to go on"
    }


@pytest.mark.parametrize("world_size", WORLDS)
def test_the_ranks_resume_to_the_bit(results: Results, world_size: int) -> None:
    """New objects on the same ranks reach weights and sums of a straight run, dropout included."""
    for rank in results[world_size]:
        assert torch.equal(rank["resumed"]["second"], rank["resumed"]["straight"])
        straight, second = rank["resumed"]["sums"]
        assert second == straight


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("name", ["in validation", "in a validation that counts"])
def test_the_ranks_go_on_within_a_validation(results: Results, world_size: int, name: str) -> None:
    """No batch is done twice, but where each rank has counted for itself; the bits are the same."""
    for rank in results[world_size]:
        found = rank[name]
        done, expected = found["batches"]
        steps = {1: 7, 2: 4, 3: 3}[world_size]
        assert f"and batch 2 of {steps} of validation: the state is saved" in found["message"]
        assert expected == 2 * steps
        begins_anew = name != "in validation" and world_size > 1
        assert done == expected + (2 if begins_anew else 0)
        assert torch.equal(*found["weights"])
        assert found["history"][0] == found["history"][1]
