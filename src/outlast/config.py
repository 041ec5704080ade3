"""The experiment file: every key with its type, range, default and meaning. No torch here.

Snakemake imports this module while it parses the workflow, a thousand runs included.
config/README.md and workflow/schemas/config.schema.json are generated from it (`make docs`).
"""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from outlast.errors import ConfigError
from outlast.metric_names import EXAMPLES, PATTERN, check_metric

BUILT_IN_SOURCES = ("digits", "breast_cancer", "iris", "wine")
Fraction = Annotated[float, Field(ge=0, lt=1)]
Scalar = bool | int | float | str
Network = Annotated[str, Field(pattern=r"^(mlp|cnn1d|cnn2d|[\w./~-]+:[A-Za-z_]\w*)$")]
SelectionMetric = Annotated[str, BeforeValidator(check_metric)]
LossName = Literal["auto", "bce", "cross_entropy"]


class Section(BaseModel):
    """A part of the experiment file. Unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_for_number(cls, value: Any, info: Any) -> Any:
        # pydantic reads true as 1: `epochs: yes` would train one epoch
        if isinstance(value, bool) and cls.model_fields[info.field_name].annotation in (int, float):
            raise ValueError("a number is needed, not true or false")
        return value


class SplitSection(Section):
    """How the rows are divided."""

    validation: Fraction = Field(
        0.15, description="Share of all rows that decides which epoch is best. 0: no validation."
    )
    test: Fraction = Field(
        0.15, description="Share of all rows that only `evaluate` sees. 0: no test metrics."
    )
    stratify: bool = Field(True, description="Keep the class shares equal in all splits.")
    seed: int = Field(0, ge=0, description="Seed of the split.")


class DataSection(Section):
    """Where the data are and what is what."""

    source: str = Field(
        min_length=1,
        description="A built-in of scikit-learn"
        f" ({', '.join(map('`{}`'.format, BUILT_IN_SOURCES))}), a `.npz` file, a folder of"
        " `.npy` files (used where it lies), or a `.csv` / `.tsv` table.",
    )
    inputs: list[str] | dict[str, str | list[str]] | None = Field(
        None,
        description="Arrays that enter the network, in the order of its `forward`. For a table:"
        " column patterns, `{expression: 'gene_*'}` (one array per entry) or a list (one array"
        " `features`). Default: every array, or every numeric column, but the label.",
    )
    label: str = Field("label", description="Array or column that holds the class of each row.")
    normalize: Literal["none", "standard", "per_sample"] = Field(
        "none",
        description="`standard`: subtract the mean and divide by the standard deviation of the"
        " training split, per feature (one-dimensional rows) or per channel. `per_sample`: each"
        " row by its own mean and standard deviation.",
    )
    split: SplitSection = Field(default_factory=SplitSection, description="")


class ModelSection(Section):
    """The network."""

    network: Network = Field(
        "mlp",
        description="`mlp`, `cnn1d`, `cnn2d`, or your own: `file.py:Class` or `module:Class`.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the network's constructor."
    )


class LossSection(Section):
    """The main loss."""

    name: LossName = Field(
        "auto", description="`auto`: `bce` for two classes, `cross_entropy` for more."
    )


class SchedulerSection(Section):
    """The learning rate over the epochs."""

    name: Literal["none", "cosine", "reduce_on_plateau"] = Field(
        "none",
        description="`cosine`: half a cosine over `training.epochs`, down to 1e-6 of the base."
        " `reduce_on_plateau`: multiply by `factor` when the selection metric stands still.",
    )
    patience: int = Field(
        5, ge=0, description="Epochs without a better selection metric that plateau forgives."
    )
    factor: float = Field(0.5, gt=0, lt=1, description="What plateau multiplies the rate by.")


class TrainingSection(Section):
    """How the network is trained."""

    epochs: int = Field(50, ge=1, description="Passes over the training split, at most.")
    batch_size: int = Field(128, ge=1, description="Rows per optimizer step, over all ranks.")
    grad_accum_split: int = Field(
        1, ge=1, description="Parts that a batch is cut into, to save memory. Same gradient."
    )
    learning_rate: float = Field(1e-3, gt=0, description="Base learning rate.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay of the optimizer.")
    optimizer: Literal["adamw", "adam", "sgd"] = Field("adamw", description="As in torch.optim.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of `sgd`; others ignore it.")
    scheduler: SchedulerSection = Field(default_factory=SchedulerSection, description="")
    early_stopping_patience: int = Field(
        10, ge=0, description="Epochs without a better selection metric before the end. 0: off."
    )
    selection_metric: SelectionMetric = Field(
        "auto",
        description="Metric on the validation split that decides which epoch is best. `auto`:"
        " `val_auc` for two classes, `val_f1` (macro) for more. `val_loss`: lower is better. For"
        " two classes only, each with a number above 0, at most 1 (`tpr_at_fpr`: at least 0, below"
        " 1): `tpr_at_fpr:F`, true positive rate at false positive rate F;"
        " `callable_at_precision:P`, largest share of rows, most confident first, whose calls have"
        " accuracy P; `precision_at_recall:R` and `recall_at_precision:P`, best over thresholds.",
        examples=list(EXAMPLES),
        json_schema_extra={"pattern": PATTERN},
    )
    seed: int = Field(0, ge=0, description="Seed of initial weights, order of rows and dropout.")


class CheckpointSection(Section):
    """The rolling state, model_resume.pt."""

    every_seconds: float = Field(
        60.0, ge=0, description="Seconds between saves within an epoch. 0: at every step."
    )


class LaunchSection(Section):
    """The processes of one run. Changes nothing but the speed."""

    processes: int = Field(1, ge=1, description="Ranks of torchrun (one per GPU, or per core).")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="`auto`: `cuda` where there is a GPU, else `cpu`."
    )
    threads: int = Field(1, ge=1, description="CPU threads per rank.")


class ResourcesSection(Section):
    """What one attempt asks of the scheduler. Partition and account live in the profile."""

    runtime: int = Field(60, ge=1, description="Minutes.")
    mem_mb: int = Field(4000, ge=1, description="Megabytes.")


class SweepSection(Section):
    """Which runs there are: every combination of the values."""

    parameters: dict[str, list[Any]] = Field(
        default_factory=dict,
        description="Dotted key of `model`, `loss` or `training` -> values. A setting of the"
        " leaderboard is one combination.",
    )
    replicates: dict[str, list[Any]] = Field(
        default_factory=dict,
        description="The same, for what only repeats a setting (seeds): the leaderboard gives"
        " mean and standard deviation over them.",
    )


class Config(Section):
    """One experiment."""

    experiment: str = Field(
        "experiment",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=100,
        description="Names the folder under results/.",
    )
    data: DataSection = Field(description="")
    model: ModelSection = Field(default_factory=ModelSection, description="")
    loss: LossSection = Field(default_factory=LossSection, description="")
    training: TrainingSection = Field(default_factory=TrainingSection, description="")
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection, description="")
    launch: LaunchSection = Field(default_factory=LaunchSection, description="")
    resources: ResourcesSection = Field(default_factory=ResourcesSection, description="")
    sweep: SweepSection = Field(default_factory=SweepSection, description="")


def load(path: Path) -> Config:
    """Read an experiment file.

    Raises:
        ConfigError: The file is no YAML mapping, or a key or value is wrong (all of them named).
    """
    return parse(read_yaml(path), source=str(path))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping without checking its keys."""
    try:
        content = yaml.load(path.read_text(), _Loader)
    except OSError as error:
        raise ConfigError([f"cannot be read: {error.strerror}"], str(path)) from error
    except yaml.YAMLError as error:
        raise ConfigError([f"no valid YAML: {error}"], str(path)) from error
    if not isinstance(content, dict):
        raise ConfigError(["a mapping of keys to values is needed"], str(path))
    return content


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one section: YAML would keep the last, in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise ConfigError(
                    [f"{key.value}: stands twice in one section (line {line}); keep one"],
                    "the experiment file",
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(content: Mapping[str, Any], source: str = "the configuration") -> Config:
    """Check plain values and return the typed experiment.

    Raises:
        ConfigError: With one line per wrong key or value.
    """
    try:
        config = Config.model_validate(_read_exponents(dict(content)))
    except ValidationError as error:
        problems = [_describe(problem) for problem in error.errors(include_url=False)]
        raise ConfigError(dict.fromkeys(problems), source) from None
    if problems := _contradictions(config):
        raise ConfigError(problems, source)
    return config


def _contradictions(config: Config) -> list[str]:
    """Name what is right key by key and wrong together."""
    problems = []
    split, training = config.data.split, config.training
    if split.validation + split.test >= 1:
        problems.append(
            f"data.split: validation {split.validation} + test {split.test} leave nothing to"
            " train on; their sum must be below 1"
        )
    if split.validation + split.test == 0:
        problems.append(
            "data.split: validation and test are both 0, so that nothing is left to evaluate on;"
            " give one of them a share"
        )
    if split.validation == 0:
        if training.scheduler.name == "reduce_on_plateau":
            problems.append(
                "training.scheduler.name: reduce_on_plateau watches the validation split, and"
                " data.split.validation is 0; use none or cosine, or give it a share"
            )
        if training.selection_metric != "auto":
            problems.append(
                f"training.selection_metric: {training.selection_metric} needs a validation"
                " split, and data.split.validation is 0; remove the key or give it a share"
            )
    for name, values in [*config.sweep.parameters.items(), *config.sweep.replicates.items()]:
        if not values:
            problems.append(f"sweep: {name} has no values; give at least one, or remove the key")
    return problems


# YAML 1.1 reads 1e-3 (no dot) as text. Everybody means the number.
_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")


def _read_exponents(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _read_exponents(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_read_exponents(item) for item in value]
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        return float(value)
    return value


def _describe(problem: Any) -> str:
    """Turn one finding of pydantic into a line with key, value and what to do."""
    # pydantic adds the names of union members to the path: keep what the user wrote
    path = [str(part) for part in problem["loc"] if "[" not in str(part)]
    key, value = ".".join(path), problem["input"]
    if problem["type"] == "extra_forbidden":
        legal = legal_keys(path[:-1])
        near = difflib.get_close_matches(path[-1], legal, n=1, cutoff=0.5)
        advice = f"did you mean {near[0]}?" if near else f"legal here: {', '.join(legal)}"
        return f"{key}: unknown key (value {value!r}); {advice}"
    if problem["type"] == "missing":
        return f"{key}: this key has no default; add it"
    if message := _plain_words(problem["type"], problem["msg"], key):
        return f"{key}: {value!r} is not allowed; {message}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{key}: {value!r} is not allowed; {message}"


def _plain_words(kind: str, message: str, key: str) -> str | None:
    """Say in a user's words what pydantic says in its own."""
    if key == "model.network":
        return "should be mlp, cnn1d, cnn2d, file.py:Class or module:Class"
    if key == "data.inputs":
        return "a list of names or patterns is needed, or a mapping of array names to patterns"
    if kind == "string_pattern_mismatch":
        return "letters, digits, . _ - are allowed, and the first must be a letter or digit"
    if kind == "string_type":
        return "text is needed: put it in quotes"
    if kind == "model_type" or (kind == "dict_type" and "." not in key):
        return "a section with keys below it is needed; remove it to take the defaults"
    return None


def legal_keys(path: list[str]) -> list[str]:
    """Return the keys that may stand in the section at ``path`` (empty: the top level)."""
    section: Any = Config
    for name in path:
        if name not in section.model_fields:
            return []
        section = section.model_fields[name].annotation
        if not (isinstance(section, type) and issubclass(section, Section)):
            return []
    return list(section.model_fields)


def choices(annotation: Any) -> list[str]:
    """Return the legal words of a ``Literal`` type, or an empty list for any other type."""
    return [str(value) for value in get_args(annotation)] if "Literal" in str(annotation) else []
