"""One list of dependencies, in three files that must not drift apart."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# what conda-forge calls by another name
CONDA_NAMES = {"torch": "pytorch"}


@pytest.fixture(scope="module")
def lock():
    """Name -> exact version of requirements.lock."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins.items()}


def test_conda_users_get_the_same_dependencies():
    """environment.yml lists what pyproject.toml lists, with the same bounds."""
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    wanted = {
        CONDA_NAMES.get(requirement.name, requirement.name) + str(requirement.specifier)
        for requirement in map(Requirement, PROJECT["dependencies"])
    }
    tools = {"pip", "setuptools>=77", f"python{PROJECT['requires-python']}"}
    assert set(content["dependencies"]) == wanted | tools


def test_the_build_needs_what_conda_users_have():
    """The package is built without isolation: environment.yml holds the build's own needs."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    content = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert set(build) <= set(content["dependencies"])


def test_the_lock_is_exact_sorted_and_names_no_host():
    """Each line is name==version without a local part, so that any index can serve it."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in pins)
    assert pins == sorted(pins, key=str.lower)
    assert "torch==2.13.0" in pins


def test_the_lock_holds_every_dependency_within_its_bounds(lock):
    """Runtime, development and build requirements are pinned to versions that they allow."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    development = PROJECT["optional-dependencies"]["dev"]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *development, *build]):
        version = lock[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"


def test_the_lock_holds_what_its_packages_need(lock):
    """`pip install --no-deps` would do: nothing that a locked package needs is left open."""
    missing = set()
    for name in lock:
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            # torch pins the libraries of its CUDA builds by itself, and other builds lack them
            if name == "torch" or (needed.marker and not needed.marker.evaluate({"extra": ""})):
                continue
            if canonicalize_name(needed.name) not in lock:
                missing.add(f"{name} needs {line}")
    assert not missing


@pytest.mark.skipif(Path(sys.prefix) != ROOT / ".venv", reason="not the environment of make")
def test_the_environment_of_make_has_the_locked_versions(lock):
    """What is installed in .venv is what the lock says."""
    installed = {name: metadata.version(name).partition("+")[0] for name in lock}
    assert installed == lock
