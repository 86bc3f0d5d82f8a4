"""A run's process that does as it is told: `actor.py RUN WORD...`, then waits until its stdin is closed.

Words: `claim`, `stop` (asks for it), `rank:N` (records itself as rank N, at step 7), `end:STATUS`, any other kind of
event, `deaf` (ignores SIGTERM), `family` (starts a child and a grandchild that outlives it, both deaf).
"""

import signal
import subprocess
import sys
from pathlib import Path

from trainer.ranks import RankRecord
from trainer.runs import Run, event_writer

run = Run(Path(sys.argv[1]))
events = event_writer(run)
for word in sys.argv[2:]:
    match word.split(":"):
        case ["claim"]:
            run.claim()
        case ["stop"]:
            run.ask_to_stop()
        case ["rank", number]:
            record = RankRecord(run, int(number))
            record.beat(7)
            record.done({})
        case ["deaf"]:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case ["family"]:
            # The middle one leaves at once, so that the last one has lost its way back to this process.
            middle = "import subprocess, sys; subprocess.Popen(sys.argv[1:], stdin=0, stdout=1)"
            last = [sys.executable, __file__, str(run.path), "deaf", "rank:1"]
            subprocess.run([sys.executable, "-c", middle, *last], check=True)
            subprocess.Popen([sys.executable, __file__, str(run.path), "deaf", "rank:2"])
        case ["end", status]:
            events.write("end", status=status, error=None, rank=None, step=0)
        case [kind]:
            events.write(kind, step=0)
print("ready", flush=True)
sys.stdin.read()
