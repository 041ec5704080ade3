"""The sections of an experiment file: every key with type, range, default, meaning. No torch here.

Snakemake imports this module while it parses the workflow, a thousand runs included.
config/README.md and workflow/schemas/config.schema.json are generated from it (`make docs`).
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from outlast.metric_names import EXAMPLES, PATTERN, check_metric

BUILT_IN_SOURCES = ("digits", "breast_cancer", "iris", "wine", "diabetes")
Fraction = Annotated[float, Field(ge=0, lt=1)]
Scalar = bool | int | float | str
Network = Annotated[str, Field(pattern=r"^(mlp|cnn1d|cnn2d|[\w./~-]+:[A-Za-z_]\w*)$")]
Rate = Annotated[float, Field(ge=0, lt=1)]
SelectionMetric = Annotated[str, BeforeValidator(check_metric)]
LossName = Literal[
    "auto", "bce", "focal", "cross_entropy", "noise_corrected_bce", "noise_corrected_ce"
]


class Section(BaseModel):
    """A part of the experiment file. Unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_for_number(cls, value: Any, info: Any) -> Any:
        # pydantic reads true as 1: `epochs: yes` would train one epoch
        kind = cls.model_fields[info.field_name].annotation
        is_number = kind in (int, float) or bool({int, float} & set(get_args(kind)))
        if isinstance(value, bool) and is_number:
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
    threshold: float | Literal["median"] | None = Field(
        None,
        description="Makes two classes of a numeric label: above it, or not. `median`: that of the"
        " training split (needs `stratify: false`).",
    )
    group: str | None = Field(
        None,
        description="Array or column (donor, plate, recording): the rows of one group never come"
        " into two splits.",
    )
    noise_group: str | None = Field(
        None,
        description="Array or column whose values are the keys of `loss.label_noise.rates`."
        " Default: `group`.",
    )
    confound: str | None = Field(
        None,
        description="Array or column (batch, site, sex) that the adversary removes. Empty, NaN, NA"
        " or -1: unknown.",
    )
    target: str | None = Field(
        None,
        description="Array or column that the regression head predicts. Empty or NaN: missing.",
    )
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
    head: str = Field(
        "auto",
        description="Module whose input is the representation that the adversary and the regression"
        " read. `auto`: the first of `head`, `classifier`, `fc` that the network has.",
    )


class LabelNoiseSection(Section):
    """What is known of wrong labels."""

    rates: dict[str, Rate] = Field(
        default_factory=dict,
        description="`noise_corrected_bce`: value of `data.noise_group` -> share of its labels that"
        " are flipped. `noise_corrected_ce`: class -> share of its rows that are labelled `sink`."
        " One that is not named: 0.",
    )
    sink: str | None = Field(
        None, description="`noise_corrected_ce`: the class that wrongly labelled rows end in."
    )

    @field_validator("rates", mode="before")
    @classmethod
    def _keys_are_text(cls, value: Any) -> Any:
        # YAML reads the name of a group `1` as a number, and `yes` or `off` as true or false
        if not isinstance(value, dict):
            return value
        if any(isinstance(key, bool) for key in value):
            raise ValueError("a name that YAML reads as true or false; put it in quotes")
        return {str(key): rate for key, rate in value.items()}


class LossSection(Section):
    """The main loss."""

    name: LossName = Field(
        "auto",
        description="`auto`: `bce` for two classes, `cross_entropy` for more. Two classes: `focal`,"
        " `noise_corrected_bce`; any number: `noise_corrected_ce`.",
    )
    gamma: float = Field(2.0, ge=0, description="`focal`: weight (1 - p)^gamma of each row.")
    neg_gamma: float | None = Field(
        None, ge=0, description="`focal`: another gamma for the negatives. Default: the same."
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="Share of the label spread over all classes in training."
    )
    class_weights: Literal["none", "auto"] | list[Annotated[float, Field(gt=0)]] = Field(
        "none",
        description="Weight of the rows of each class in the training loss. `auto`: negatives /"
        " positives for the second of two classes, sqrt(N / (K n)) for more. Or a list.",
    )
    label_noise: LabelNoiseSection = Field(default_factory=LabelNoiseSection, description="")


class AdversarySection(Section):
    """Removes a confound from the representation (gradient reversal)."""

    strength: float = Field(
        0.0, ge=0, description="Factor of the reversed gradient (lambda). 0: no adversary."
    )
    anneal_epochs: int = Field(
        0, ge=0, description="Epochs over which the strength grows from 0. 0: full from the start."
    )


class RegressionSection(Section):
    """An auxiliary head that predicts `data.target`."""

    weight: float = Field(0.0, ge=0, description="Factor of its loss. 0: no such head.")
    range: Literal["real", "unit"] = Field(
        "real",
        description="`real`: any number, standardized by the training rows. `unit`: in [0, 1];"
        " negative is missing.",
    )


class SchedulerSection(Section):
    """The learning rate over the epochs."""

    name: Literal["none", "cosine", "reduce_on_plateau"] = Field(
        "none",
        description="`cosine`: half a cosine over `training.epochs`, which after the last is at"
        " 1e-6 of the base."
        " `reduce_on_plateau`: multiply by `factor` when the selection metric stands still.",
    )
    patience: int = Field(
        5, ge=0, description="Epochs without a better selection metric that plateau forgives."
    )
    factor: float = Field(0.5, gt=0, lt=1, description="What plateau multiplies the rate by.")


class TimeMaskSection(Section):
    """Stretches of the last axis that are set to 0."""

    width: int = Field(1, ge=1, description="Length of a stretch, in positions.")
    count: int = Field(0, ge=0, description="Stretches per row. 0: off.")


class AugmentSection(Section):
    """Random changes of training rows after `data.normalize`, others in each epoch."""

    jitter: float = Field(
        0.0, ge=0, description="Standard deviation of normal noise on every value. 0: off."
    )
    min_scale: float = Field(
        1.0, gt=0, description="Smallest factor of a row; drawn up to `max_scale`."
    )
    max_scale: float = Field(1.0, gt=0, description="Largest factor of a row. Both 1: off.")
    shift: int = Field(
        0,
        ge=0,
        description="Each row moved by up to so many positions along its last axis, zeros coming"
        " in; inputs with channels only. 0: off.",
    )
    time_mask: TimeMaskSection = Field(default_factory=TimeMaskSection, description="")


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
        10,
        ge=0,
        description="Epochs without a better selection metric before the end. 0, or no validation"
        " split: off.",
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
    warmup_epochs: int = Field(
        0, ge=0, description="Epochs over which the learning rate grows linearly to the base."
    )
    max_grad_norm: float = Field(
        0.0, ge=0, description="Gradients of a larger norm are scaled down to it. 0: off."
    )
    quantile_grad_clip: bool = Field(
        False, description="The same with twice the median norm of the last 100 steps as limit."
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Of the forward pass (autocast). `float16` needs a GPU."
    )
    sampling: Literal["shuffle", "balance_labels", "balance_groups"] = Field(
        "shuffle",
        description="`shuffle`: each row once per epoch. `balance_labels`, `balance_groups`: as"
        " many draws, with replacement, equally often from each class or `data.noise_group`.",
    )
    augment: AugmentSection = Field(default_factory=AugmentSection, description="")
    seed: int = Field(0, ge=0, description="Seed of initial weights, order of rows and dropout.")


class CheckpointSection(Section):
    """The rolling state, model_resume.pt."""

    every_seconds: float = Field(
        60.0, ge=0, description="Seconds between saves within an epoch. 0: at every step."
    )


class LaunchSection(Section):
    """The processes of one run. Changes nothing but the speed."""

    nodes: int = Field(1, ge=1, description="Nodes of one run. More than one needs SLURM.")
    processes: int = Field(
        1, ge=1, description="Ranks of torchrun on each node (one per GPU, or per core)."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="`auto`: `cuda` where there is a GPU, else `cpu`."
    )
    threads: int = Field(1, ge=1, description="CPU threads per rank.")

    @property
    def world_size(self) -> int:
        """Ranks of one run, over all nodes."""
        return self.nodes * self.processes


class ResourcesSection(Section):
    """What one attempt asks of the scheduler. Partition and account live in the profile."""

    runtime: int = Field(60, ge=1, description="Minutes.")
    runtime_grows: bool = Field(
        False, description="Attempt n asks for n times the minutes, within the partition's limit."
    )
    mem_mb: int = Field(
        4000, ge=1, description="Megabytes on each node, about 250 of them for Snakemake itself."
    )
    mem_grows: bool = Field(False, description="Attempt n asks for n times the megabytes.")
    gpus: int = Field(
        0,
        ge=0,
        description="GPUs of a training run on each node: one per rank. Their type lives in the"
        " profile.",
    )

    def of_attempt(self, attempt: int) -> tuple[int, int]:
        """Return minutes and megabytes of an attempt, the first of which is 1."""
        minutes = self.runtime * (attempt if self.runtime_grows else 1)
        return minutes, self.mem_mb * (attempt if self.mem_grows else 1)


class SweepSection(Section):
    """Which runs there are: every combination of the values."""

    parameters: dict[str, list[Any]] = Field(
        default_factory=dict,
        description="Dotted key of `model`, `loss`, `adversary`, `regression` or `training` ->"
        " values. A setting of the leaderboard is one combination.",
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
        max_length=70,  # with the name of a run it is one of a folder of the logs on SLURM
        description="Names the folder under results/.",
    )
    data: DataSection = Field(description="")
    model: ModelSection = Field(default_factory=ModelSection, description="")
    loss: LossSection = Field(default_factory=LossSection, description="")
    adversary: AdversarySection = Field(default_factory=AdversarySection, description="")
    regression: RegressionSection = Field(default_factory=RegressionSection, description="")
    training: TrainingSection = Field(default_factory=TrainingSection, description="")
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection, description="")
    launch: LaunchSection = Field(default_factory=LaunchSection, description="")
    resources: ResourcesSection = Field(default_factory=ResourcesSection, description="")
    sweep: SweepSection = Field(default_factory=SweepSection, description="")
