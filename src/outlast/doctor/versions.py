"""The versions of Snakemake and of its plugin for SLURM."""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from outlast.doctor.lines import Line, bad, ok

# package -> oldest version, and what is wrong with the ones before
NEEDED = {
    "snakemake": ("9.27", "reruns finished trainings when only resources change"),
    "snakemake-executor-plugin-slurm": ("2.7.1", "knows no slurm-status-command: squeue"),
}


def version_lines() -> Iterator[Line]:
    """Look at what is installed beside this outlast."""
    for package, (oldest, why) in NEEDED.items():
        fix = f'python -m pip install "{package}>={oldest}" (in the environment of outlast)'
        try:
            found = version(package)
        except PackageNotFoundError:
            yield bad(package, "is not installed beside outlast", fix)
            continue
        if _numbers(found) < _numbers(oldest):
            yield bad(package, f"{found} {why}", fix)
        else:
            yield ok(package, found)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))
