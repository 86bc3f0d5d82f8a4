"""How far off the forecast is: `python -m benchmarks.forecast_error [--presets tutorial fast] [--rounds 5]`.

Each round calibrates, which trains nothing, and then races ddp x2 and x4 for some steps on generated pictures; the
error of the forecast is taken for each mode, and its median over the rounds. Both see the same minutes of the machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

STEPS = {"tutorial": 200, "fast": 30}  # of a run: enough for the median over its points
MODES = ("single", "ddp:2", "ddp:4")


def trainer(*words: str) -> dict[str, Any]:
    """What a command of the trainer prints as JSON."""
    done = subprocess.run([sys.executable, "-m", "trainer", *words, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def one_round(preset: str, runs: Path, steps: int) -> list[dict[str, Any]]:
    settings = ["--preset", preset, "--dataset", "shapes", "--devices", "cpu"]
    forecast = trainer("forecast", *MODES, *settings)
    kept = runs.parent / "calibration.json"
    kept.write_text(json.dumps(forecast["calibration"]))
    short = ["--max-steps", str(steps), "--eval-every", "10000"]
    trainer("race", *MODES, *settings, *short, "--runs-dir", str(runs))
    return trainer("forecast", "--against", "latest", "--calibration", str(kept), "--runs-dir", str(runs))["rows"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=[*STEPS], choices=[*STEPS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="of each run; 0: as the preset needs")
    given = parser.parse_args()
    for preset in given.presets:
        errors: dict[str, list[float]] = {}
        for number in range(given.rounds):
            with tempfile.TemporaryDirectory(prefix="forecast-") as folder:
                rows = one_round(preset, Path(folder) / "runs", given.steps or STEPS[preset])
            for row in rows:
                errors.setdefault(row["name"], []).append(row["error"])
                others = f", others {row['others']:.0%}" if row["others"] is not None else ""
                print(
                    f"{preset} {number + 1} {row['name']}: predicted {1000 * row['predicted']:.1f} ms, "
                    f"measured {1000 * row['measured']:.1f} ms, {row['error']:+.1%}{others}",
                    flush=True,
                )
        for name, found in errors.items():
            print(f"{preset} {name}: median error {median(map(abs, found)):.1%} of {len(found)}", flush=True)


if __name__ == "__main__":
    main()
