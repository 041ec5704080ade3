# Tables and figures: seconds each, so that they run where Snakemake runs and queue for nothing.


localrules:
    curves,
    list_runs,
    collect,


rule curves:
    input:
        "results/{experiment}/runs/{run}/history.json",
    output:
        report(
            "results/{experiment}/runs/{run}/curves.png",
            caption="../report/curves.rst",
            category="Learning curves",
            labels={"run": "{run}"},
        ),
    log:
        "logs/{experiment}/curves/{run}.log",
    conda:
        "../../environment.yml"
    shell:
        "outlast curves --history {input:q} --out {output:q} --title {wildcards.run:q}"
        " > {log:q} 2>&1"


# A file, because the names of a thousand runs do not fit on a command line.
rule list_runs:
    output:
        "results/{experiment}/runs.json",
    log:
        "logs/{experiment}/list_runs.log",
    params:
        runs=list_of_runs,
    run:
        write_json(Path(output[0]), params.runs)


rule collect:
    input:
        runs="results/{experiment}/runs.json",
        histories=of_every_run("results/{experiment}/runs/{run}/history.json"),
        metrics=of_every_run("results/{experiment}/runs/{run}/test/metrics.json"),
        predictions=of_every_run("results/{experiment}/runs/{run}/test/predictions.parquet"),
    output:
        leaderboard=report(
            "results/{experiment}/leaderboard.tsv",
            caption="../report/leaderboard.rst",
            category="Leaderboard",
            labels={"content": "table"},
        ),
        runs="results/{experiment}/runs.tsv",
        chart=report(
            "results/{experiment}/leaderboard.png",
            caption="../report/leaderboard.rst",
            category="Leaderboard",
            labels={"content": "figure"},
        ),
        confusion=report(
            "results/{experiment}/confusion.png",
            caption="../report/confusion.rst",
            category="Best setting",
            labels={"content": "confusion matrix"},
        ),
    log:
        "logs/{experiment}/collect.log",
    conda:
        "../../environment.yml"
    params:
        folder=lambda wildcards, output: str(Path(output.leaderboard).parent),
    shell:
        "outlast collect --runs {input.runs:q} --experiment {params.folder:q}"
        " --out {params.folder:q} > {log:q} 2>&1"
