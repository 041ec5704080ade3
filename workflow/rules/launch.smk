# How a training run is started: `launch` and `resources` of the config, as torchrun and Snakemake's
# resources. Whatever else SLURM is asked for (partition, account, type of GPU) is in the profile.

LAUNCH, RESOURCES = EXPERIMENT.launch, EXPERIMENT.resources

# without them Snakemake would wait for ever for some jobs on SLURM, and give up too soon on others
notice_lost_jobs()
mend_submissions()

# a GPU that was asked for and is not there must not end in hours of training on the CPU
DEVICE = "cuda" if RESOURCES.gpus else LAUNCH.device


def runtime_of_attempt(wildcards, attempt):
    """Minutes."""
    return RESOURCES.of_attempt(attempt)[0]


def mem_mb_of_attempt(wildcards, attempt):
    """Megabytes of each node."""
    return RESOURCES.of_attempt(attempt)[1]


# Names that snakemake-executor-plugin-slurm knows. With `mpi` the job's own Snakemake runs outside
# of any step, so that the rule's srun may start one on all nodes: a task, a torchrun, on each.
# `nodes` also for one: SLURM would take the GPUs of a job from several nodes, and its step from one.
# `gpu` also for none: with the gpu_model of a profile the plugin would ask for one.
NODES_AND_GPUS = {"nodes": LAUNCH.nodes, "gpu": 0}
if LAUNCH.nodes > 1:
    NODES_AND_GPUS |= {"tasks": LAUNCH.nodes, "mpi": "srun"}
if RESOURCES.gpus:
    # of all nodes. The plugin would make --ntasks-per-gpu of our tasks, which are not per GPU.
    NODES_AND_GPUS |= {"gpu": RESOURCES.gpus * LAUNCH.nodes, "tasks_per_gpu": 0}

# exec: a signal to the job must reach torchrun, not a shell that dies of it and leaves the trainer
# no time to save. If Snakemake itself is killed, the trainer saves and leaves.
TORCHRUN = (
    "OUTLAST_END_WITH_PARENT=$PPID exec torchrun --standalone"
    f" --nproc-per-node {LAUNCH.processes} --logs-specs outlast"
)
if LAUNCH.nodes > 1:
    # Snakemake's jobs have few of SLURM's variables left, so that srun is told all numbers. The
    # shell runs on the first node, which is where the ranks meet. A torchrun that dies takes the
    # others along: they would wait for it.
    TORCHRUN = (
        f'exec srun --jobid "${{SLURM_JOB_ID:?launch.nodes: {LAUNCH.nodes} needs SLURM:'
        ' snakemake --profile profiles/slurm}"'
        f" --nodes {LAUNCH.nodes} --ntasks {LAUNCH.nodes} --ntasks-per-node 1"
        f" --cpus-per-task {LAUNCH.processes * LAUNCH.threads} --kill-on-bad-exit=1"
        f" torchrun --nnodes {LAUNCH.nodes} --nproc-per-node {LAUNCH.processes}"
        " --rdzv-backend c10d --rdzv-id $SLURM_JOB_ID"
        " --rdzv-endpoint $(hostname):$((10000 + SLURM_JOB_ID % 20000)) --logs-specs outlast"
    )
