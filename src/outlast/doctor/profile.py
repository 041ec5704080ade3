"""The profile as Snakemake will read it: found by its name, with the resources of the rules."""

import ast
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from outlast.config import read_yaml
from outlast.errors import ConfigError

# as in Snakemake: the file for the highest major version that is not above its own
FILE = re.compile(r"(?:profile|config)(?:\.v(\d+)\+)?\.yaml")


@dataclass(frozen=True)
class Profile:
    """Settings of Snakemake.

    Attributes:
        path: The file.
        values: Its content.
    """

    path: Path
    values: Mapping[str, Any]

    def get(self, *names: str) -> Any:
        """Return the value of an option, which may have several names; None if it is not set."""
        found = (self.values[name] for name in names if self.values.get(name) is not None)
        return next(found, None)

    def is_on(self, *names: str) -> bool:
        """Tell whether a switch is set."""
        return str(self.get(*names)).lower() in ("true", "yes", "1")

    def number(self, *names: str, default: int) -> int | None:
        """Return a whole number, ``default`` if it is not set, None if it is none."""
        value = self.get(*names)
        if value is None:
            return default
        is_number = re.fullmatch(r"\s*-?\d+\s*", str(value)) and not isinstance(value, bool)
        return int(value) if is_number else None

    def resource(self, name: str, rule: str | None = "train") -> str:
        """Return a resource of a rule, or by default of all rules; empty if it is not set."""
        if of_rule := self.set_resource(name, rule):
            return of_rule
        return _text(_pairs(self.values.get("default-resources")).get(name))

    def set_resource(self, name: str, rule: str | None = "train") -> str:
        """Return what a rule's own value of a resource is replaced by; empty if by nothing."""
        return _text(_pairs(self.values.get("set-resources")).get(f"{rule}:{name}"))


def read_profile(name: str) -> Profile:
    """Find and read a profile.

    Args:
        name: A file, a folder, or the name of one among Snakemake's own settings.

    Raises:
        ConfigError: There is none, or it is no YAML.
    """
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "snakemake"
    for path in (Path(name), settings / name, Path("/etc/xdg/snakemake") / name):
        if path.is_file():
            return Profile(path, read_yaml(path))
        if path.is_dir() and (file := _newest(path)):
            return Profile(file, read_yaml(file))
    raise ConfigError([f"--profile: {name} is no folder with a config.yaml; name one"], name)


def _newest(folder: Path) -> Path | None:
    try:
        major = int(version("snakemake").partition(".")[0])
    except PackageNotFoundError:
        major = 9
    files: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        if match := FILE.fullmatch(path.name):
            files[int(match[1] or 0)] = path
    return files[max(fitting)] if (fitting := [n for n in files if n <= major]) else None


def _pairs(value: Any) -> dict[str, Any]:
    """Return resources that are written as a mapping, or as a list of ``[rule:]name=value``."""
    if isinstance(value, Mapping):
        pairs: dict[str, Any] = {}
        for key, item in value.items():
            if isinstance(item, Mapping):
                pairs |= {f"{key}:{name}": of_rule for name, of_rule in item.items()}
            else:
                pairs[str(key)] = item
        return pairs
    words = value if isinstance(value, list) else str(value or "").split()
    split = (str(word).partition("=") for word in words)
    return {key.strip(): text for key, equals, text in split if equals}


def _text(value: Any) -> str:
    return "" if value is None else str(_unquoted(value)).strip()


def _unquoted(value: Any) -> Any:
    """Return what Snakemake makes of ``"gpu"``: it evaluates the text, quotes included."""
    try:
        return ast.literal_eval(value.strip()) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        return value
