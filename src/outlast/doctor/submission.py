"""How a job is placed: the options of sbatch that the plugin makes of the profile."""

import shlex

from outlast.doctor.profile import Profile

# resource of the profile -> option of sbatch
RESOURCES = {"slurm_account": "--account", "qos": "--qos", "constraint": "--constraint"}
SETTINGS = {"slurm-qos": "--qos", "slurm-reservation": "--reservation"}


def placing_options(profile: Profile, partition: str) -> list[str]:
    """Return where a training goes, and who pays."""
    options = [f"--partition={partition}"] if partition else []
    for name, option in RESOURCES.items():
        if value := profile.resource(name):
            options.append(f"{option}={value}")
    for name, option in SETTINGS.items():
        if value := profile.get(name):
            options.append(f"{option}={value}")
    return options + shlex.split(profile.resource("slurm_extra"))


def gpu_options(profile: Profile, number: int) -> list[str]:
    """Return how GPUs are asked for: as the profile says, or so many of its model."""
    if not number:
        return []
    gres, own = profile.resource("gres"), profile.set_resource("gpu")
    options = [f"--gres={gres}"] if gres else []
    if own.isdigit():
        number = int(own)
    if number:
        model = profile.resource("gpu_model")
        options.append(f"--gpus={model}:{number}" if model else f"--gpus={number}")
    return options


def asks_for_gpus(profile: Profile) -> bool:
    """Tell whether the profile asks for GPUs by itself."""
    return any("gpu" in profile.resource(name) for name in ("gres", "slurm_extra"))
