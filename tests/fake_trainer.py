"""A trainer without training, for the tests of its supervisor; the run's label says how it behaves."""

import signal
import sys
import time
from pathlib import Path

from trainer.queue import wait_for_turn
from trainer.runs import Run, event_writer

run = Run(Path(sys.argv[sys.argv.index("--run") + 1]))
behaviour = run.config().label
if behaviour == "broken":
    print("starting", flush=True)
    raise ModuleNotFoundError("No module named 'torch'")
if behaviour == "mute":
    sys.exit(0)
if wait_for_turn(run) is None:
    sys.exit(0)
events = event_writer(run)
events.write("start", step=0)
if behaviour == "quick":
    events.write("step", step=1, epoch=float(run.config().epochs), loss=1.0)
    events.write("end", status="completed", error=None, rank=None, step=1)
    sys.exit(0)
if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while behaviour == "deaf" or not run.stop_path.exists():
    time.sleep(0.02)
events.write("end", status="stopped", error=None, rank=None, step=0)
