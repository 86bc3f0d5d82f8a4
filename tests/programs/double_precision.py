"""Train runs in fp64, where modes must agree almost to the last bit: python double_precision.py RUN..."""

import sys
from pathlib import Path

import torch

from trainer import spawn
from trainer.launch import launch
from trainer.runs import Run

rank_main = spawn._rank_main


def double_rank_main(*args) -> None:
    torch.set_default_dtype(torch.float64)
    rank_main(*args)


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    spawn._rank_main = double_rank_main
    for path in sys.argv[1:]:
        run = Run(Path(path))
        run.claim()
        if launch(run).status != "completed":
            sys.exit(1)
