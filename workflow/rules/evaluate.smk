# The best model of a run on the test split, which nothing before this has seen.


rule evaluate:
    input:
        model="results/{experiment}/runs/{run}/model_best.pt",
        data="results/{experiment}/data",
    output:
        metrics="results/{experiment}/runs/{run}/test/metrics.json",
        predictions="results/{experiment}/runs/{run}/test/predictions.parquet",
    log:
        "logs/{experiment}/evaluate/{run}.log",
    conda:
        "../../environment.yml"
    resources:
        runtime=runtime_of_attempt,
        mem_mb=mem_mb_of_attempt,
    params:
        folder=lambda wildcards, output: str(Path(output.metrics).parent),
    shell:
        "outlast evaluate --model {input.model:q} --data {input.data:q} --out {params.folder:q}"
        " > {log:q} 2>&1"
