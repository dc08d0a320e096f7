"""One of several processes that count shards: python counting_process.py HOST:PORT PROCESSES ID SHARDS OUT"""

import sys

import numpy as np

from jexplicit.counts.pairs import count
from jexplicit.data.shards import read_shards
from jexplicit.runs.devices import (
    check_equal_across_processes,
    data_mesh,
    gather_over_processes,
    is_first,
    join,
    part_of_process,
    request_devices,
)


def main(coordinator: str, processes: str, number: str, shards: str, out: str) -> None:
    request_devices(2)
    join(coordinator, int(processes), int(number), seconds=60)
    mesh = data_mesh(2)
    stream = read_shards(shards)
    check_equal_across_processes("shards", stream.sha256)
    counts = count(stream, radius=2, vocab_size=stream.vocab_size, mesh=mesh, chunk=50)
    first, last = part_of_process(0, 7)
    numbers = gather_over_processes(stream[first:last])
    if is_first():
        np.savez(out, C_1=counts[0], C_2=counts[1], numbers=numbers)


if __name__ == "__main__":
    main(*sys.argv[1:])
