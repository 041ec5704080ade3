# The data of an experiment: named arrays, splits and a manifest. Once, for all runs.


rule prepare:
    input:
        source_files,
    output:
        directory("results/{experiment}/data"),
    log:
        "logs/{experiment}/prepare.log",
    conda:
        "../../environment.yml"
    resources:
        runtime=runtime_of_attempt,
        mem_mb=mem_mb_of_attempt,
    params:
        config=values_of_data,
    shell:
        "outlast prepare --config {params.config:q} --out {output:q} > {log:q} 2>&1"
