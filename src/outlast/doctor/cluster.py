"""What the whole cluster is set to: programs, the memory of ended jobs, signals."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping

from outlast.doctor.lines import Line, bad, note, ok
from outlast.doctor.profile import Profile
from outlast.doctor.programs import ask

# what costs slurmctld little; sbatch has nothing to ask it for
QUESTIONS = {
    "sinfo": ("--noheader",),
    "squeue": ("--noheader", f"--user={os.getuid()}"),
    "scontrol": ("show", "config"),
    "sbatch": ("--version",),
}
RAREST_POLL_S = 180  # of the plugin, which takes ten more each time that no job has ended
USUAL_MIN_JOB_AGE = 300


def has_slurm() -> bool:
    """Tell whether this is a machine of a SLURM cluster."""
    return shutil.which("sinfo") is not None


def program_lines() -> Iterator[Line]:
    """Call each program that Snakemake and the trainer need."""
    replies = {name: ask(name, *question) for name, question in QUESTIONS.items()}
    for name, reply in replies.items():
        if not reply.is_good:
            fix = "load SLURM's programs (module load slurm?), or ask the administrators"
            yield bad(name, reply.error, fix)
    if all(reply.is_good for reply in replies.values()):
        yield ok("SLURM", f"{', '.join(replies)} answer ({replies['sbatch'].output})")


def account_line(profile: Profile) -> Line:
    """Say whether the plugin can look for an account, which it does at each submission."""
    account = profile.resource("slurm_account")
    program, subject = "sacctmgr" if account else "sacct", "slurm_account"
    if shutil.which(program):
        return ok(subject, account or "none, so that SLURM's default one pays")
    found = f"there is no {program} on the PATH, and Snakemake's plugin calls it at each submission"
    if account:
        return bad(subject, found, f"load SLURM's programs, or no slurm_account in {profile.path}")
    return bad(subject, found, f"load SLURM's programs, or slurm_account: yours in {profile.path}")


def read_settings() -> dict[str, str]:
    """Return slurm.conf as slurmctld has it."""
    pairs = (line.partition("=") for line in ask("scontrol", "show", "config").output.splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def memory_line(settings: Mapping[str, str], profile: Profile) -> Line:
    """Say whether squeue remembers an ended job until Snakemake asks again."""
    first_s = profile.number("slurm-init-seconds-before-status-checks", default=40) or 40
    age, subject = _seconds(settings.get("MinJobAge", "")), "MinJobAge"
    has_sacct = shutil.which("sacct") is not None
    if age == 0 and not has_sacct:
        return ok(subject, "0: squeue forgets no job")
    shown = "unknown" if age is None else f"{age} s"
    if (age is None or age < 3 * first_s) and has_sacct:
        found = (
            f"{shown}, less than 3 x slurm-init-seconds-before-status-checks ({first_s}), so that"
            f" the plugin asks sacct in spite of the profile; {_follows(settings)}"
        )
        lower = age is not None and age >= RAREST_POLL_S
        fix = f"slurm-init-seconds-before-status-checks: {(age or 0) // 3} in {profile.path}"
        return bad(subject, found, fix if lower else _ask_for_more(has_sacct, settings))
    if age is None or age < RAREST_POLL_S:
        found = (
            f"{shown}; Snakemake looks at a long job once in {RAREST_POLL_S} s, and waits for ever"
            " for one that squeue has forgotten"
        )
        return bad(subject, found, _ask_for_more(has_sacct, settings))
    return ok(subject, f"{age} s, and Snakemake asks at least once in {RAREST_POLL_S} s")


def _follows(settings: Mapping[str, str]) -> str:
    if _has_accounting(settings):
        return "after a scancel, or some seconds without the database, it waits for ever"
    return "there is no accounting, so that it never learns of any end and waits for ever"


def _has_accounting(settings: Mapping[str, str]) -> bool:
    kind = settings.get("AccountingStorageType", "")
    return bool(kind) and not kind.endswith("/none") and kind != "(null)"


def _ask_for_more(has_sacct: bool, settings: Mapping[str, str]) -> str:
    fix = f"ask the administrators for MinJobAge={USUAL_MIN_JOB_AGE}, SLURM's own default"
    if has_sacct and _has_accounting(settings):
        fix += "; until then slurm-status-command: sacct, and no scancel"
    return fix


def kill_line(settings: Mapping[str, str]) -> Line:
    """Say what time there is at the walltime."""
    wait = _seconds(settings.get("KillWait", ""))
    found = (
        f"{'unknown' if wait is None else f'{wait} s'} from SIGTERM to SIGKILL at the walltime."
        " On most clusters no SIGTERM reaches the trainer: it saves and leaves before, by itself"
    )
    return note("KillWait", found)


def _seconds(text: str) -> int | None:
    match = re.match(r"(\d+)", text)
    return int(match[1]) if match else None
