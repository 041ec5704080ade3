# One run of the sweep. No `retries` here: they belong to the profile, because on SLURM the nested
# Snakemake of each attempt would retry a rule's own again.


rule train:
    input:
        data="results/{experiment}/data",
        network=network_files,
    output:
        model="results/{experiment}/runs/{run}/model_best.pt",
        history="results/{experiment}/runs/{run}/history.json",
    log:
        "logs/{experiment}/train/{run}.log",
    conda:
        "../../environment.yml"
    threads: EXPERIMENT.launch.processes * EXPERIMENT.launch.threads
    resources:
        **NODES_AND_GPUS,
        runtime=runtime_of_attempt,
        mem_mb=mem_mb_of_attempt,
    params:
        # a change of these values trains the run again
        config=values_of_run,
        # What follows shapes no number. As functions of `output` or `resources` they count as
        # derived: a change of theirs reruns nothing.
        folder=lambda wildcards, output: str(Path(output.model).parent),
        # The rolling checkpoint that outlives a failed attempt. Snakemake deletes the declared
        # outputs of a failed job, and leaves alone what is only a param.
        resume=lambda wildcards, output: str(Path(output.model).with_name("model_resume.pt")),
        every_seconds=lambda wildcards, resources: EXPERIMENT.checkpoint.every_seconds,
        torchrun=lambda wildcards, resources: TORCHRUN,
        world_size=lambda wildcards, resources: EXPERIMENT.launch.world_size,
        device=lambda wildcards, resources: DEVICE,
        threads_per_process=lambda wildcards, resources: EXPERIMENT.launch.threads,
    shell:
        "OMP_NUM_THREADS={params.threads_per_process} {params.torchrun}"
        " -m outlast train --config {params.config:q} --data {input.data:q}"
        " --out {params.folder:q} --checkpoint-every {params.every_seconds}"
        " --world-size {params.world_size} --device {params.device}"
        " --threads {params.threads_per_process} > {log:q} 2>&1"
