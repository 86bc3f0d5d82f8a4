"""Kill a process that writes checkpoints, at 25 random moments; after each, load what it left.

Prints for each round the step that was surely written and the step that was loaded.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from tests.test_checkpoint import state
from trainer import checkpoint

path = Path(sys.argv[1]) / "last.pt"
torch.set_num_threads(1)
checkpoint.save(path, state(0))
random.seed(0)
for _ in range(25):
    first = checkpoint.load(path)["step"]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for step in range(first + 1, first + 1_000_000):
            checkpoint.save(path, state(step, size=300_000))
            os.write(writer, b".")
    os.close(writer)
    time.sleep(random.uniform(0.001, 0.06))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    surely = first
    while said := os.read(reader, 65536):
        surely += len(said)
    os.close(reader)
    print(surely, checkpoint.load(path)["step"], flush=True)
