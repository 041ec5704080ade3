"""Programs with the names of SLURM's, which say what files beside them hold."""

import time
from pathlib import Path

SETTINGS = {
    "AccountingStorageType": "accounting_storage/none",
    "KillWait": "30 sec",
    "MinJobAge": "300 sec",
    "PreemptType": "preempt/none",
}
PARTITION = {
    "PartitionName": "main",
    "State": "UP",
    "MaxTime": "1-00:00:00",
    "MaxNodes": "UNLIMITED",
    "MaxCPUsPerNode": "UNLIMITED",
    "MaxMemPerNode": "UNLIMITED",
    "PreemptMode": "OFF",
}
NODES = ("node1|8|64000|idle|gpu:a100:2(S:0-1)", "node2|4|16000|mix|(null)")

PROGRAMS = {
    "sinfo": """\
case "$*" in
*%P*) echo "main* low" ;;
*%R*) echo "main low" ;;
*--Node*) cat nodes ;;
esac
""",
    "squeue": """\
case "$*" in
*%e*) cat deadline ;;
*%T*) echo "$(cat state)|Priority" ;;
esac
""",
    "scontrol": """\
case "$*" in
"show config") cat config ;;
*"show job"*) echo "JobId=7 JobState=$(cat state) Reason=None BatchHost=node1 ExitCode=3:0" ;;
*)
    for name; do :; done
    cat "partition.$name" 2> /dev/null || { echo "Partition $name not found"; exit 1; }
    ;;
esac
""",
    # runs the job here, or does what the file `jobs` says
    "sbatch": """\
echo "$*" >> submitted
case "$*" in
--version) echo "slurm-wlm 22.05.8"; exit ;;
*--test-only*) cat verdict >&2; grep -q start verdict; exit ;;
esac
for word; do
    case "$word" in --wrap=*) wrap=${word#*=} ;; --output=*) log=${word#*=} ;; esac
done
case "$(cat jobs)" in
refuse) echo "sbatch: error: Invalid account" >&2; exit 1 ;;
wait) echo PENDING > state ;;
lose) echo FAILED > state ;;
crash) echo FAILED > state; echo "No module named outlast" > "$log" ;;
*)
    echo RUNNING > state
    { SLURM_JOB_ID=7 sh -c "$wrap" > "$log" 2>&1; echo COMPLETED > state; } > /dev/null 2>&1 &
    ;;
esac
echo 7
""",
    "sacct": "",
    "sacctmgr": "",
    "scancel": 'echo "$*" >> cancelled\n',
    "srun": 'test -z "$SLURM_CONF" || { echo "unlike in Snakemake" >&2; exit 1; }\n',
    "torchrun": "",
}


class FakeSlurm:
    """A folder that a PATH consists of.

    Attributes:
        folder: With the programs, and with the files that they speak from.
    """

    def __init__(self, folder: Path) -> None:
        """Make a cluster on which all is well."""
        self.folder = folder
        folder.mkdir()
        for name in ("sh", "cat", "grep", "env", "true"):
            real = next(path for top in ("/bin", "/usr/bin") if (path := Path(top, name)).exists())
            (folder / name).symlink_to(real)
        for name, text in PROGRAMS.items():
            self.program(name, text)
        self.settings()
        self.partition()
        self.say("nodes", "\n".join(NODES))
        self.say("verdict", "sbatch: Job 7 to start at 2026-12-01T09:06:14 using 1 processors")
        self.say("jobs", "run")
        self.say("state", "PENDING")
        self.end_in(120)

    def program(self, name: str, text: str) -> None:
        """Put a program there, or another one in its place."""
        path = self.folder / name
        path.write_text(f'#!/bin/sh\ncd "${{0%/*}}"\n{text}')
        path.chmod(0o755)

    def remove(self, name: str) -> None:
        """Take a program away."""
        (self.folder / name).unlink()

    def say(self, name: str, text: str) -> None:
        """Let a program say this."""
        (self.folder / name).write_text(text + "\n")

    def said(self, name: str) -> str:
        """Return what a program has been called with."""
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def settings(self, **changed: str) -> None:
        """Let slurm.conf be good, but for what is named."""
        values = {**SETTINGS, **changed}
        self.say("config", "\n".join(f"{key:<23} = {value}" for key, value in values.items()))

    def partition(self, name: str = "main", **changed: str) -> None:
        """Let a partition be good, but for what is named."""
        values = {**PARTITION, "PartitionName": name, **changed}
        self.say(f"partition.{name}", " ".join(f"{key}={value}" for key, value in values.items()))

    def end_in(self, seconds: float) -> None:
        """Let squeue say when the job will reach its walltime."""
        end = time.localtime(time.time() + seconds)
        self.say("deadline", time.strftime("%Y-%m-%dT%H:%M:%S", end))
