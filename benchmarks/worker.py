"""One case in a process of its own: `python -m benchmarks.worker TABLE CASE`. A line on stdin asks for one slice.

Answers "ready" and then, a line a slice, pictures a second.
"""

import os
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.cases import TABLES, Case
from benchmarks.loops import use_cores


def serve(case: Case, rank: int, rendezvous: Path, parent: Connection) -> None:
    """Be one rank: build, say so, then a slice for each message until there is None."""
    use_cores(case.ranks)
    if case.group:
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=case.ranks)
    do_slice = case.loop(rank if case.group else 0, case.ranks if case.group else 1, **case.options)
    do_slice()  # the first one is slow
    parent.send(True)
    while parent.recv():
        begun = time.perf_counter()
        count = do_slice()
        parent.send((count, time.perf_counter() - begun))
    os._exit(0)


def main(table: str, name: str) -> None:
    case = TABLES[table].cases[name]
    context = mp.get_context("spawn")
    rendezvous = Path(tempfile.mkdtemp(prefix="bench-")) / "rendezvous"
    pipes = [context.Pipe() for _ in range(case.ranks)]
    ranks = [
        context.Process(target=serve, args=(case, rank, rendezvous, theirs)) for rank, (_, theirs) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    ours = [pipe for pipe, _ in pipes]
    for pipe in ours:
        pipe.recv()
    print("ready", flush=True)
    for _ in sys.stdin:
        for pipe in ours:
            pipe.send(True)
        done = [pipe.recv() for pipe in ours]
        print(sum(count for count, _ in done) / max(seconds for _, seconds in done), flush=True)
    for pipe in ours:
        pipe.send(None)
    for process in ranks:
        process.join(10)


if __name__ == "__main__":
    main(*sys.argv[1:])
