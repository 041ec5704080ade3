"""How torchrun waits for its ranks after a request: as long as it takes, but for none in vain."""

import subprocess
import sys

import pytest

# stands for torchrun with two ranks, each a shell line; prints how long it has waited for them
TORCHRUN = """
import signal, subprocess, sys, time
from torch.distributed.elastic.multiprocessing.api import SignalException
from outlast import launch
launch.FAILED_S = 1.0
launch._shutdown.num_ranks = 2
ranks = [
    subprocess.Popen(["bash", "-c", f"echo; {line}"], start_new_session=True, stdout=-1)
    for line in sys.argv[1:]
]
for rank in ranks:
    rank.stdout.readline()
time.sleep(0.3)
started = time.monotonic()
try:
    launch._pass_on(signal.SIGTERM, None)
except SignalException as error:
    print(error.sigval.name, time.monotonic() - started, *[rank.poll() for rank in ranks])
for rank in ranks:
    rank.kill()
"""
SAVES = "trap 'sleep 3; exit 75' TERM; while :; do sleep 0.1; done"
LEAVES = "trap 'exit 75' TERM; while :; do sleep 0.1; done"
FAILS = "trap 'exit 1' TERM; while :; do sleep 0.1; done"
IS_STUCK = "trap '' TERM; while :; do sleep 0.1; done"


@pytest.mark.parametrize(
    ("ranks", "least", "most", "codes"),
    [
        ((SAVES, LEAVES), 3, 10, ["75", "75"]),
        ((SAVES, SAVES), 3, 10, ["75", "75"]),
        ((FAILS, IS_STUCK), 1, 2.9, ["1", "None"]),
        (("exit 1", IS_STUCK), 1, 2.9, ["1", "None"]),
        ((FAILS, "trap 'exit 1' TERM; sleep 30 & wait"), 0, 2.9, ["1", "1"]),
    ],
    ids=["one saves", "both save", "one fails", "one had failed", "both fail"],
)
def test_the_ranks_are_waited_for(
    ranks: tuple[str, str], least: float, most: float, codes: list[str]
) -> None:
    """Who saves is; who hangs because another has failed is not, but for a moment."""
    done = subprocess.run(
        [sys.executable, "-c", TORCHRUN, *ranks], capture_output=True, text=True, timeout=60
    )
    name, seconds, *found = done.stdout.split()
    assert (name, found) == ("SIGTERM", codes), done.stderr
    assert least <= float(seconds) <= most
