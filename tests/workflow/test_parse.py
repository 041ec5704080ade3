"""The workflow as Snakemake reads it: which jobs there are, and what makes them run again."""

import os
import re
import shutil
from collections import Counter

import pytest
from snakemaking import PROFILE, ROOT, snakemake

EXAMPLE = ROOT / "config/examples/breast_cancer.yaml"

TINY = """\
experiment: tiny
data:
  source: iris
model:
  options: {hidden: [8], dropout: 0.1}
training:
  epochs: 1
  batch_size: 32
launch:
  device: cpu
sweep:
  parameters:
    training.learning_rate: [0.001, 0.01]
"""


MANY = "experiment: many\ndata: {source: iris}\n"


@pytest.fixture
def workdir(tmp_path):
    """A working directory with nothing but the default experiment file."""
    (tmp_path / "config").mkdir()
    shutil.copy(ROOT / "config/config.yaml", tmp_path / "config/config.yaml")
    return tmp_path


def planned(workdir, *arguments):
    """Return what a dry run would do, as {rule: {run, or "" for a rule without one}}."""
    output = snakemake(workdir, "--dry-run", "--profile", PROFILE, *arguments).stdout
    jobs: dict[str, set[str]] = {}
    rule = ""
    for line in output.splitlines():
        if match := re.match(r"(?:local)?rule (\w+):", line):
            rule = match[1]
            jobs.setdefault(rule, set())
        elif match := re.match(r" +wildcards: (.*)", line):
            jobs[rule].add(match[1].partition("run=")[2])
    jobs.pop("all", None)
    return jobs


def counts(workdir, *arguments):
    """Return how many jobs of each rule a dry run lists."""
    return Counter({rule: len(runs) for rule, runs in planned(workdir, *arguments).items()})


def test_the_default_experiment_is_two_rates_with_two_seeds(workdir):
    """A plain dry run lists four runs, each trained, evaluated and drawn."""
    jobs = planned(workdir)
    runs = {f"learning_rate={rate}__seed={seed}" for rate in (0.001, 0.003) for seed in (0, 1)}
    assert jobs["train"] == jobs["evaluate"] == jobs["curves"] == runs
    assert jobs["prepare"] == jobs["list_runs"] == jobs["collect"] == {""}


def test_another_experiment_file_replaces_the_default(workdir):
    """With --configfile nothing of config/config.yaml is left: no key, no sweep."""
    jobs = planned(workdir, "--configfile", EXAMPLE)
    assert jobs["train"] == {"seed=0", "seed=1", "seed=2"}
    output = snakemake(workdir, "-n", "-p", "--configfile", EXAMPLE).stdout
    assert "results/breast_cancer/" in output
    assert "digits" not in output
    assert "cnn2d" not in output


def test_the_example_with_an_adversary_has_ten_seeds_for_each_strength(workdir):
    """diabetes: no adversary and two strengths, the same seeds for all, so that they are pairs."""
    jobs = planned(workdir, "--configfile", ROOT / "config/examples/diabetes.yaml")
    runs = {f"strength={x}__seed={seed}" for x in ("0.0", "3.0", "10.0") for seed in range(10)}
    assert jobs["train"] == jobs["evaluate"] == runs


def test_single_keys_can_be_set_on_the_command_line(workdir):
    """--config changes a key of the default experiment, and of one given by file."""
    change = ("--config", "experiment=trial", "training={epochs: 4}")
    for file in ((), ("--configfile", EXAMPLE)):
        output = snakemake(workdir, "-n", "-p", *file, *change).stdout
        assert "results/trial/" in output
        assert re.search(r'"epochs": 4\b', output)


def test_nested_processes_read_the_same_experiment(workdir):
    """A job that Snakemake runs in a process of its own sees the file and the changed keys."""
    change = "sweep={replicates: {training.seed: [7, 8]}}"
    target = "results/other/runs.json"
    snakemake(
        workdir,
        "--cores",
        1,
        target,
        "--configfile",
        EXAMPLE,
        "--config",
        "experiment=other",
        change,
    )
    text = (workdir / target).read_text()
    assert re.findall(r'"name": "(.*)"', text) == ["seed=7", "seed=8"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("training={epoch: 3}", "training.epoch: unknown key"),
        ("sweep={parameters: {training.learning_rate: [-1]}}", "training.learning_rate: "),
        ("sweep={parameters: {data.source: [iris]}}", "sweep: data.source cannot be swept"),
    ],
)
def test_a_wrong_key_ends_with_our_message(workdir, change, message):
    """Before any job, with key and fix, and without a Python traceback (story 56)."""
    process = snakemake(workdir, "-n", "--config", change, check=False)
    assert process.returncode != 0
    assert message in process.stdout
    assert "problem in config/config.yaml" in process.stdout
    assert "Traceback" not in process.stdout
    # Snakemake names the place in its own file, and nothing below that
    assert process.stdout.count('  File "') == 1


def test_a_run_that_does_not_exist_is_refused_by_name(workdir):
    """Asking for a file of an unknown run, or of another experiment, says which runs there are."""
    for target in ("results/digits/runs/seed=9/history.json", "results/x/runs/y/history.json"):
        process = snakemake(workdir, "-n", target, check=False)
        assert process.returncode != 0
        assert (
            "whose experiment is digits with 4 runs: learning_rate=0.001__seed=0" in process.stdout
        )


def test_the_users_own_files_are_inputs(workdir):
    """A table is an input of prepare; a network, and what it imports at its side, of train."""
    (workdir / "rows.csv").write_text("a,b,label\n1,2,x\n")
    (workdir / "net.py").write_text("import layers")
    (workdir / "layers.py").write_text("import numpy")
    change = ("--config", "data={source: rows.csv}", "model={network: 'net.py:Net'}")
    output = snakemake(workdir, "-n", *change).stdout
    assert "input: rows.csv" in output
    assert "input: results/digits/data, layers.py, net.py" in output
    (workdir / "net.py").unlink()
    process = snakemake(workdir, "-n", *change, check=False)
    assert "MissingInputException" in process.stdout
    assert "net.py" in process.stdout


def test_a_misspelt_built_in_is_refused_before_any_job(workdir):
    """Not by the first job, after minutes in a queue."""
    process = snakemake(workdir, "-n", "--config", "data={source: digit}", check=False)
    assert process.returncode != 0
    assert "data.source: 'digit' does not exist; did you mean digits?" in process.stdout
    (workdir / "iris.csv").write_text("a,label\n1,x\n")  # like a built-in, and meant
    snakemake(workdir, "-n", "--config", "data={source: iris.csv}")


def test_names_that_the_source_lacks_are_refused_before_any_job(workdir):
    """All of them on one screen, without torch; not where another rule will write the source."""
    (workdir / "rows.csv").write_text("gene_a,gene_b,cell\n1,2,x\n")
    names = "inputs: ['gene_*', 'rna_*'], label: cells"
    for source in ("rows.csv", "later.csv"):
        change = f"data={{source: {source}, {names}}}"
        process = snakemake(workdir, "-n", "--config", change, check=False, **fake_torch(workdir))
        assert process.returncode != 0
        assert "torch was imported" not in process.stdout
        is_there = source == "rows.csv"
        assert ("MissingInputException" in process.stdout) != is_there
        assert ("2 problems in config/config.yaml:" in process.stdout) == is_there
        for said in ("data.label: 'cells' is not in the source", "data.inputs: 'rna_*' is not in"):
            assert (said in process.stdout) == is_there
        # Snakemake names the place in its own file, and nothing below that
        assert process.stdout.count('  File "') == is_there


def test_a_loss_that_does_not_fit_the_data_is_refused_before_any_job(workdir):
    """By the rows of the table, without torch; and once, not again in the process of each job."""
    (workdir / "rows.csv").write_text("a,b,label\n" + "1,2,x\n2,3,y\n3,4,z\n" * 9)
    noisy = "name: noise_corrected_ce, label_noise: {rates: {x: 0.1, w: 0.2}, sink: q}"
    for loss, said in {
        "name: bce": ["loss.name: bce is for 2 classes, and the data have 3 (x, y, z)"],
        noisy: ["loss.label_noise.sink: q is no class", "loss.label_noise.rates.w: 0.2 is for no"],
    }.items():
        change = ("--config", "data={source: rows.csv}", f"loss={{{loss}}}", "model={network: mlp}")
        process = snakemake(workdir, "-n", *change, check=False, **fake_torch(workdir))
        assert process.returncode != 0
        assert f"{len(said)} problem" in process.stdout
        for line in said:
            assert line in process.stdout
        assert process.stdout.count('  File "') == 1


def fake_torch(workdir):
    """Return an environment in which to import torch ends the process."""
    fake = workdir / "fake/torch"
    fake.mkdir(parents=True, exist_ok=True)
    (fake / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    return {"PYTHONPATH": os.pathsep.join([str(fake.parent), os.environ.get("PYTHONPATH", "")])}


def test_launch_and_resources_become_those_of_the_rule(workdir):
    """Nodes, GPUs of all nodes, CPUs of one; more minutes and memory only where they shall grow."""
    launch = "launch: {nodes: 2, processes: 2, threads: 3}"
    resources = "resources: {runtime: 7, runtime_grows: true, mem_mb: 500, gpus: 2}"
    (workdir / "many.yaml").write_text(f"{MANY}{launch}\n{resources}\n")
    arguments = ("--dry-run", "--profile", PROFILE, "--configfile", "many.yaml", "--printshellcmds")
    output = snakemake(workdir, *arguments).stdout
    training = output.partition("rule train:")[2].partition("rule evaluate:")[0]
    wanted = ("nodes=2", "tasks=2", "mpi=srun", "gpu=4", "tasks_per_gpu=0", "runtime=7")
    assert [word for word in (*wanted, "mem_mb=500") if word not in training] == []
    for option in ("--nodes 2 --ntasks 2 --ntasks-per-node 1 --cpus-per-task 6", "--nnodes 2"):
        assert option in training
    assert "--nproc-per-node 2" in training
    assert "--world-size 4 --device cuda" in training


def test_one_node_asks_for_none_of_that(workdir):
    """And names no GPU: many clusters refuse what they do not know."""
    output = snakemake(workdir, "--dry-run", "--profile", PROFILE, "--printshellcmds").stdout
    assert "nodes=1, gpu=0" in output
    for word in ("mpi=", "tasks", "gres", "srun"):
        assert word not in output


def test_several_nodes_without_slurm_are_refused(workdir):
    """In the log of the run, with what to do."""
    (workdir / "many.yaml").write_text(f"{MANY}launch: {{nodes: 2}}\n")
    arguments = ("--profile", PROFILE, "--configfile", "many.yaml", "--retries", "0")
    environment = {"SLURM_JOB_ID": ""}  # also where these tests are a job themselves
    target = "results/many/runs/run/history.json"
    output = snakemake(workdir, target, *arguments, check=False, **environment).stdout
    assert "launch.nodes: 2 needs SLURM: snakemake --profile profiles/slurm" in output


def test_no_rule_retries_by_itself():
    """Retries come from the profile alone: a rule's own multiply on SLURM (story 22)."""
    rules = [path.read_text() for path in (ROOT / "workflow/rules").glob("*.smk")]
    assert len(rules) == 6
    assert not any(re.search(r"^\s*retries:", text, re.MULTILINE) for text in rules)
    assert re.search(r"^retries: 3$", (PROFILE / "config.yaml").read_text(), re.MULTILINE)


def test_the_trainer_replaces_its_shell(workdir):
    """The train job is one `exec torchrun`: a signal reaches it, not a shell (story 24)."""
    output = snakemake(workdir, "-n", "-p", "--until", "train").stdout
    lines = re.findall(
        r"^Shell command: (?:[A-Z_]+=[$\w]+ )*(exec torchrun .*)$", output, re.MULTILINE
    )
    assert len(lines) == 4
    assert all(re.search(r"> logs/digits/train/\S+\.log 2>&1$", line) for line in lines)
    assert not any(re.search(r"[|;]|&&", line.partition(" > ")[2]) for line in lines)


def test_the_rolling_checkpoint_is_no_declared_output(workdir):
    """Snakemake deletes declared outputs of a failed job: model_resume.pt is only a param."""
    output = snakemake(workdir, "-n", "--until", "train").stdout
    declared = [line for line in output.splitlines() if line.strip().startswith("output:")]
    assert sum("model_best.pt" in line for line in declared) == 4
    assert not any("model_resume.pt" in line for line in declared)


def test_lint_finds_nothing(workdir):
    """`snakemake --lint` is clean."""
    assert "good condition" in snakemake(workdir, "--lint").stdout


def test_a_thousand_runs_parse_in_seconds_without_torch(workdir):
    """A dry run of 1,000 runs takes seconds, and fails if anything imports torch."""
    seeds = ", ".join(map(str, range(1000)))
    change = f"sweep={{parameters: {{}}, replicates: {{training.seed: [{seeds}]}}}}"
    (workdir / "config/config.yaml").write_text(
        f"data: {{source: digits}}\n{change.replace('=', ': ', 1)}\n"
    )
    process = snakemake(workdir, "-n", "--quiet", "rules", **fake_torch(workdir))
    assert re.search(r"^train +1000$", process.stdout, re.MULTILINE)
    assert "torch was imported" not in process.stdout


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A working directory in which a tiny experiment has really been run."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "config").mkdir()
    (folder / "config/config.yaml").write_text(TINY)
    snakemake(folder, "--profile", PROFILE, "--retries", 0)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        TINY,
        "# a comment\n" + TINY.replace("epochs: 1", "epochs: 1 # another"),
        "launch:\n  device: cpu\n" + TINY.replace("launch:\n  device: cpu\n", ""),
        TINY.replace("{hidden: [8], dropout: 0.1}", "{dropout: 0.1, hidden: [8]}"),
        TINY.replace("0.01]", "1.0e-2]") + "checkpoint: {every_seconds: 5}\n",
        TINY.replace("device: cpu", "device: auto\n  processes: 2\n  threads: 3"),
        TINY + "resources: {runtime: 5, mem_mb: 500}\n",
    ],
    ids=["same", "comment", "sections", "keys", "interval", "launch", "resources"],
)
def test_what_shapes_no_number_reruns_nothing(finished, text):
    """Comments, order, the interval, ranks, threads and resources run no job again (story 57)."""
    (finished / "config/config.yaml").write_text(text)
    assert planned(finished) == {}


@pytest.mark.slow
def test_an_added_value_trains_its_own_run_only(finished):
    """The others are neither renamed nor run again; the comparison is (story 58)."""
    (finished / "config/config.yaml").write_text(TINY.replace("0.01]", "0.01, 0.1]"))
    jobs = planned(finished)
    assert jobs.pop("collect") == jobs.pop("list_runs") == {""}
    assert jobs == {rule: {"learning_rate=0.1"} for rule in ("train", "evaluate", "curves")}


@pytest.mark.slow
def test_a_removed_value_trains_nothing(finished):
    """Only the comparison is made again."""
    (finished / "config/config.yaml").write_text(TINY.replace("0.001, ", ""))
    assert planned(finished).keys() == {"collect", "list_runs"}


@pytest.mark.slow
def test_a_changed_value_trains_the_runs_that_have_it(finished):
    """A changed base value trains every run again, on the data as they are."""
    (finished / "config/config.yaml").write_text(TINY.replace("epochs: 1", "epochs: 2"))
    jobs = counts(finished)
    assert jobs["train"] == jobs["evaluate"] == 2
    assert jobs["prepare"] == 0


@pytest.mark.slow
def test_changed_data_prepare_and_train_again(finished):
    """A change of the data section goes through the whole chain."""
    text = TINY.replace("source: iris", "source: iris\n  normalize: standard")
    (finished / "config/config.yaml").write_text(text)
    assert counts(finished)["prepare"] == 1
    assert counts(finished)["train"] == 2
