"""Run the real workflow of this checkout in a folder of the test's own."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "profiles/local"
SNAKEMAKE = (sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile")


def start_snakemake(workdir: Path, *arguments: object, **environment: str):
    """Start Snakemake in ``workdir``, with the tools of this Python's folder."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        [*SNAKEMAKE, "--directory", workdir, *map(str, arguments)],
        env={**os.environ, "PATH": path, **environment},
        cwd=workdir,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def snakemake(workdir: Path, *arguments: object, check: bool = True, **environment: str):
    """Run Snakemake to its end; return the finished process with its output."""
    process = start_snakemake(workdir, *arguments, **environment)
    output, _ = process.communicate(timeout=280)
    assert process.returncode == 0 or not check, output
    return subprocess.CompletedProcess(process.args, process.returncode, output)
