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
    """Return how GPUs are asked for, of the profile's model."""
    if not number:
        return []
    model = profile.resource("gpu_model")
    return [f"--gpus={model}:{number}" if model else f"--gpus={number}"]
