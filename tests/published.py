"""Published scaling of systems that are not ours, with all that a forecast of it needs.

The sources stand in docs/forecast.md; `rows` reckons the lines of the table there."""

from dataclasses import dataclass

from trainer.calibration import Calibration, Compute
from trainer.forecast import Network, cluster

SPREAD = 0.03  # of a step of one rank, which none of the sources tells


@dataclass(frozen=True)
class System:
    name: str
    parameters: int
    batch: int  # pictures a device
    images_per_second: float  # of one device
    machines: int
    gpus: int
    gbit: float
    efficiency: float  # as published
    baseline_machines: int = 0  # what the efficiency is counted from; 0: one device


INCEPTION, RESNET101, VGG16, RESNET50 = 23_834_568, 44_549_160, 138_357_544, 25_557_032
SYSTEMS = [
    System("Horovod, Inception V3", INCEPTION, 64, 142, 32, 4, 25, 0.90),
    System("Horovod, ResNet-101", RESNET101, 64, 103.6, 32, 4, 25, 0.90),
    System("Horovod, VGG-16", VGG16, 64, 154, 32, 4, 25, 0.79),
    System("Horovod, Inception V3", INCEPTION, 64, 142, 128, 4, 25, 0.90),
    System("Horovod, ResNet-101", RESNET101, 64, 103.6, 128, 4, 25, 0.90),
    System("Horovod, VGG-16", VGG16, 64, 154, 128, 4, 25, 0.68),
    System("Goyal et al., ResNet-50", RESNET50, 32, 195, 32, 8, 50, 0.90, baseline_machines=1),
]


def forecast_of(system: System) -> float:
    """The efficiency that the forecast gives for it."""
    calibration = Calibration(
        model=system.name,
        device="P100",
        is_cpu=False,
        gradient_bytes=4 * system.parameters,
        compute=[
            Compute(ranks=1, batch=system.batch, seconds=system.batch / system.images_per_second, spread=SPREAD),
        ],
    )
    counts = [system.machines, *([system.baseline_machines] if system.baseline_machines else [])]
    rows = cluster(calibration, system.batch, counts, system.gpus, Network(gbit=system.gbit))
    return rows[0]["efficiency"] / (rows[1]["efficiency"] if system.baseline_machines else 1)


def rows() -> list[str]:
    """The lines of the table."""
    found = []
    for system in SYSTEMS:
        guess = forecast_of(system)
        found.append(
            f"| {system.name} | {system.machines} x {system.gpus} | {system.gbit:g} | {system.efficiency:.0%} | "
            f"{guess:.0%} | {round(100 * (guess / system.efficiency - 1)):+d} % |"
        )
    return found
