from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils.core import publish_doctree
from jinja2 import Environment, StrictUndefined

CAPTIONS = Path(__file__).parents[3] / "workflow" / "report"


@pytest.mark.parametrize("name", ["workflow", "curves", "leaderboard", "confusion"])
@pytest.mark.parametrize("sweep", [None, {"parameters": {"training.learning_rate": [1, 2]}}])
def test_caption_is_valid(name: str, sweep: dict[str, object] | None) -> None:
    """Each caption renders with what Snakemake offers, to reStructuredText without a warning."""
    template = Environment(undefined=StrictUndefined).from_string(
        (CAPTIONS / f"{name}.rst").read_text()
    )
    snakemake = SimpleNamespace(
        wildcards=SimpleNamespace(run="lr=1__seed=0"), config={"sweep": sweep} if sweep else {}
    )
    text = template.render(snakemake=snakemake)
    # level 1 (information) and above stops the parser
    publish_doctree(text, settings_overrides={"halt_level": 1, "report_level": 1})
    assert ("training.learning_rate" in text) == (name == "workflow" and sweep is not None)
    assert ("lr=1__seed=0" in text) == (name == "curves")
