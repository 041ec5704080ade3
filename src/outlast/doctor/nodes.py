"""The nodes of a partition, as sinfo shows them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from outlast.doctor.programs import ask

# beginnings of what sinfo says of nodes that take no job
NOT_NOW = ("down", "drain", "drng", "fail", "futr", "inval", "maint", "unk")


@dataclass(frozen=True)
class Node:
    """What a node gives, and whether it does so now."""

    name: str
    cpus: int
    mem_mb: int
    gpus: Mapping[str, int]
    is_up: bool

    def gpus_of(self, model: str) -> int:
        """Return the number of GPUs of one model, or of all."""
        return self.gpus.get(model, 0) if model else sum(self.gpus.values())


def nodes_of(partition: str) -> list[Node]:
    """Return the nodes of a partition."""
    form = "--format=%N|%c|%m|%t|%G"
    output = ask("sinfo", "--noheader", "--Node", f"--partition={partition}", form).output
    nodes = []
    for line in output.splitlines():
        name, cpus, mem_mb, state, gres = line.split("|", 4)
        gpus: dict[str, int] = {}
        for model, count in re.findall(r"\bgpu(?::([^:(,]+))?:(\d+)", gres):
            gpus[model] = gpus.get(model, 0) + int(count)
        is_up = not state.startswith(NOT_NOW) and not state.endswith("*")
        nodes.append(Node(name, number_in(cpus), number_in(mem_mb), gpus, is_up))
    return nodes


def number_in(text: str) -> int:
    """Return the number that a text begins with: `1024+`; 0 if there is none."""
    return int(re.match(r"\d*", text)[0] or 0)  # type: ignore[index]  # it always matches
