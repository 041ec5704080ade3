"""What the README tells a reader to type does what it says."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from snakemaking import ROOT

README = (ROOT / "README.md").read_text()


def command_block(first_words: str) -> str:
    """Return the indented block of the README that begins with these words."""
    blocks = re.findall(r"(?:^    .*\n)+", README, re.MULTILINE)
    (block,) = [block for block in blocks if block.strip().startswith(first_words)]
    return block


def test_training_by_hand(tmp_path: Path) -> None:
    """The commands for two ranks without Snakemake train, and a second call is complete."""
    (tmp_path / "config").symlink_to(ROOT / "config")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    commands = command_block("outlast prepare")
    train = commands[commands.index("torchrun") :]
    for script in (commands, train):
        output = subprocess.run(
            ["bash", "-ec", script],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
            check=False,
        )
        assert output.returncode == 0, output.stdout
    assert "already complete" in output.stdout
    assert (tmp_path / "run/model_best.pt").exists()


def test_make_targets_and_links_exist() -> None:
    """Every `make TARGET` and every linked file of the README is there."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"(?:    |`)make ([a-z-]+)", README))
    assert {"demo", "test"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_ci_runs_the_test_command_of_the_readme() -> None:
    """`.ci/run` calls `make check` and `make test`."""
    lines = [shlex.split(line) for line in (ROOT / ".ci/run").read_text().splitlines()]
    assert ["make", "check"] in lines
    assert ["make", "test"] in lines
