"""Run the real workflow on the small SLURM, and do to its jobs what happens to jobs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from killing import run_config
from snakemaking import ROOT

from outlast.sweep import expand

PROFILE = ROOT / "profiles/slurm"
QUICK = Path(__file__).with_name("quick_snakemake.py")
# seconds of a forward pass: an epoch of the digits has 14 in training, and 2 in validation
SLOW, FAST = 1.0, 0.01


@dataclass
class Workflow:
    """One working directory with one experiment in it, and Snakemake at work there.

    Attributes:
        workdir: Of Snakemake.
        config: Of the experiment, as plain values.
        options: Of Snakemake, beside the profile.
        environment: Of Snakemake, and so of its jobs.
        profile: The project's own, or one that a test has made of it.
    """

    workdir: Path
    config: dict[str, Any]
    options: tuple[str, ...]
    environment: dict[str, str]
    profile: Path = PROFILE
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def folder(self) -> Path:
        """Of the only run."""
        return self.run("run")

    @property
    def output(self) -> str:
        """What Snakemake has said, in all its invocations."""
        return (self.workdir / "snakemake.log").read_text()

    @property
    def events(self) -> str:
        """The run's own log."""
        log = self.folder / "events.log"
        return log.read_text() if log.exists() else ""

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """The lines of attempts.jsonl."""
        lines = (self.folder / "attempts.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def run(self, name: str) -> Path:
        return self.workdir / f"results/{self.config['experiment']}/runs/{name}"

    def wait_s(self, seconds: float) -> None:
        """Set how long a forward pass takes, from now on."""
        (self.workdir / "wait").write_text(str(seconds))

    def start(self, *options: str, quick: bool = True, wholly: bool = False) -> None:
        """Start Snakemake, which shall train all runs; or make the whole experiment."""
        (self.workdir / "experiment.yaml").write_text(yaml.safe_dump(self.config))
        if not (self.workdir / "wait").exists():
            self.wait_s(SLOW)
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OUTLAST_TEST_WAIT_S": str(self.workdir / "wait"),
            **self.environment,
        }
        program = [QUICK] if quick else ["-m", "snakemake"]
        runs = [run.name for run in expand(self.config, "experiment.yaml")]
        files = [self.run(name).relative_to(self.workdir) / "history.json" for name in runs]
        targets = [] if wholly else files
        with (self.workdir / "snakemake.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, *program, *targets, "--snakefile", ROOT / "Snakefile"),
                    *("--profile", self.profile, "--configfile", "experiment.yaml"),
                    *("--cores", "8", *self.options, *options),
                ],
                cwd=self.workdir,
                env=environment,
                # a shell that has put these tests into the background lets them ignore Ctrl-C
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                stdout=log,
                stderr=log,
            )

    def wait(self, timeout_s: float = 240) -> int:
        """Wait for the end of Snakemake; return its exit code."""
        assert self.process is not None, "started"
        return self.process.wait(timeout_s)

    def finish(self, timeout_s: float = 240) -> None:
        """Wait for the end of Snakemake, which must be a success."""
        assert self.wait(timeout_s) == 0, self.story()

    def stop(self) -> None:
        """End Snakemake, if it runs, which cancels its jobs; and what jobs are left."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
        if left := [job for job, state, _ in self.jobs() if state in ("RUNNING", "PENDING")]:
            command("scancel", *left)

    def kill(self) -> None:
        """SIGKILL Snakemake: its jobs know nothing of it."""
        assert self.process is not None, "started"
        self.process.kill()
        self.process.wait(60)

    def until(self, is_so: Callable[[], Any], what: str, timeout_s: float = 120) -> Any:
        """Wait for something to be so, while Snakemake runs; return what ``is_so`` returned."""
        assert self.process is not None, "started"
        deadline = time.monotonic() + timeout_s
        while not (found := is_so()):
            assert self.process.poll() is None, f"Snakemake has ended before: {what}{self.story()}"
            assert time.monotonic() < deadline, f"never: {what}{self.story()}"
            time.sleep(0.1)
        return found

    def seconds_until(self, text: str, times: int = 1, timeout_s: float = 150) -> float:
        """Return how many seconds it takes Snakemake to say ``text``, that many times in all."""
        began = time.monotonic()
        self.until(lambda: self.output.count(text) >= times, f"Snakemake says {text}", timeout_s)
        return time.monotonic() - began

    def until_trained(self, more_than: tuple[int, int] = (0, 0)) -> tuple[int, int]:
        """Wait until an attempt has saved a later step; return its epoch and step."""
        return self.until(lambda: self.progress(more_than), f"a state after {more_than}")

    def progress(self, more_than: tuple[int, int], run: str = "run") -> tuple[int, int] | None:
        """Return epoch and step of the last save, if it is later than ``more_than``."""
        try:
            status = json.loads((self.run(run) / "status.json").read_text())
            position = (int(status["epoch"]), int(status["step"]))
        except (OSError, ValueError, KeyError, TypeError):  # there is none yet
            return None
        return position if position > more_than else None

    def training_job(self, other_than: str | None = None) -> str:
        """Wait for a running training job; return its id."""

        def look() -> str | None:
            jobs = [job for job, state, _ in self.jobs() if state == "RUNNING"]
            return next((job for job in jobs if job != other_than), None)

        return self.until(look, "a training job runs")

    def until_ended(self, job: str, timeout_s: float = 90) -> str:
        """Wait until SLURM has ended a job, all of its processes included; return its state."""

        def look() -> str | None:
            (state,) = [state for name, state, _ in self.jobs() if name == job]
            return None if state in ("RUNNING", "COMPLETING", "PENDING") else state

        return self.until(look, f"job {job} ends", timeout_s)

    def jobs(self) -> list[tuple[str, str, str]]:
        """Return id, state and node of the training jobs that SLURM has in this directory."""
        lines = squeue("--states=all", "--format=%i|%T|%N|%Z|%k").splitlines()
        fields = [line.split("|") for line in lines]
        return [
            (job, state, node)
            for job, state, node, folder, comment in fields
            if folder == str(self.workdir) and comment.startswith("rule_train")
        ]

    def story(self) -> str:
        """Return everything that was said, for the message of a failed test."""
        logs = [*self.workdir.glob("logs/*/train/*.log"), *self.workdir.glob("logs/slurm/**/*.log")]
        parts = [self.output, *(f"--- {log}\n{log.read_text()[-3000:]}" for log in logs)]
        return "\n" + "\n".join([*parts, self.events])


def squeue(*options: str) -> str:
    """Return what squeue says, without its header."""
    return command("squeue", "--noheader", *options)


def command(*words: str) -> str:
    """Run a command of SLURM, which must succeed; return what it says."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout.strip()


def agents(job: str) -> dict[str, psutil.Process]:
    """Return the torchrun of each node of a job."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            environment = process.environ()
            is_agent = "torchrun" in " ".join(process.cmdline()[:2])
            if is_agent and environment.get("SLURM_JOB_ID") == job:
                found[environment["SLURMD_NODENAME"]] = process
    return found


def end_at_walltime(job: str, in_s: float = 1) -> None:
    """Move the walltime of a running job to ``in_s`` seconds from now.

    SLURM looks for such jobs twice a minute, and then it is a TIMEOUT like any other.
    """
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + in_s))
    command("scontrol", "update", f"JobId={job}", f"EndTime={end}")


def experiment(**launch: Any) -> dict[str, Any]:
    """Return the config of the kill tests, as an experiment for the cluster."""
    return {
        **run_config(),
        "experiment": "kills",
        "launch": {"device": "cpu", **launch},
        "checkpoint": {"every_seconds": 0.1},
        "resources": {"mem_mb": 3000},
    }


def states_seen(output: str) -> list[str]:
    """Return the states of SLURM that Snakemake has told as the end of an attempt."""
    return re.findall(r"SLURM status is: '(\w+)'", output)
