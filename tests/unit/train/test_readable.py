"""What can be read back is not refused: ordinary networks hold odd things."""

import io
from typing import Any

import pytest
import torch

from outlast.errors import ModelError
from outlast.train.readable import refuse_unreadable

READABLE: dict[str, Any] = {
    "two empty ones": [torch.empty(0), torch.empty(0, dtype=torch.long)],
    "a memory bank": {"bank": torch.empty(0, 8), "ids": torch.empty(0, dtype=torch.int32)},
    "sparse": torch.eye(3).to_sparse(),
    "shared memory": [whole := torch.rand(4), whole[1:]],
    "complex": torch.zeros(3, dtype=torch.complex128).conj(),
    "plain": {"rate": 0.1, "names": ["a", "b"], "none": None},
}


@pytest.mark.parametrize("name", READABLE)
def test_what_torch_reads_back_is_not_refused(name: str) -> None:
    """Compared with torch itself."""
    content = io.BytesIO()
    torch.save(READABLE[name], content)
    content.seek(0)
    torch.load(content, weights_only=True, map_location="cpu")
    refuse_unreadable({"weights": READABLE[name]})


def test_a_class_of_the_user_is_refused() -> None:
    """No attempt could load it."""
    with pytest.raises(ModelError, match=r"correct its get_extra_state\(\)"):
        refuse_unreadable({"weights": {"x": Own()}})


class Own:
    """Of the user's own."""
