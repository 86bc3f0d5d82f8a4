"""`python -m trainer train | resume | stop | list | race | forecast | report | evaluate | predict | export`."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from trainer.anatomy_command import anatomy_command
from trainer.calibration import CalibrationError
from trainer.config import ConfigError
from trainer.devices import cpu_cores, cpu_has_bf16, list_gpus
from trainer.flags import flags, preset_of, settings
from trainer.forecast_command import forecast_command
from trainer.log import open_streams, printable
from trainer.placement import place
from trainer.presets import PRESETS
from trainer.processes import leave_now
from trainer.race_command import race_command
from trainer.report_command import report_command
from trainer.run_list import list_runs, open_run
from trainer.runs import RUN_ID, Run, RunError

COMPLETED, FAILED, BAD_ARGUMENTS = 0, 1, 2

RunsDir = Annotated[Path, tyro.conf.arg(help="where the run directories are")]
RunName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="a run's id, its path, or `latest`")]
NetworkName = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="RUN", help="a run's id, its path, `latest`, `pretrained`, or a .safetensors file"),
]
Json = Annotated[bool, tyro.conf.arg(help="print one JSON document and nothing else")]
Which = Annotated[Literal["best", "last", "previous"], tyro.conf.arg(help="which checkpoint")]
Tta = Annotated[bool, tyro.conf.arg(help="test-time augmentation: the mean answer for six views of each picture")]


def main(argv: list[str]) -> int:
    commands = {
        "train": _train_command(preset_of(argv)),
        "resume": resume,
        "stop": stop,
        "list": list_,
        "race": race_command(preset_of(argv)),
        "forecast": forecast_command(preset_of(argv)),
        "anatomy": anatomy_command,
        "report": report_command,
        "evaluate": evaluate,
        "predict": predict,
        "export": export,
    }
    try:
        return tyro.extras.subcommand_cli_from_dict(
            commands, args=argv, prog="python -m trainer", sort_subcommands=False
        )
    except (ConfigError, RunError) as error:
        return _refuse(error)
    except CalibrationError as error:
        return _fail(error)
    except BrokenPipeError:  # whoever read the output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COMPLETED


def _refuse(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return BAD_ARGUMENTS


def _train_command(preset_name: str):
    preset_flag = Literal[tuple(PRESETS)]  # type: ignore[valid-type]
    base = PRESETS[preset_name]
    main_flags, optimisation_flags = flags("main", base), flags("optimisation", base)
    more_flags, lesson_flags = flags("run", base), flags("lesson", base)

    def train(
        preset: Annotated[preset_flag, tyro.conf.arg(help="where the settings start from")] = preset_name,  # type: ignore[valid-type]
        run: Annotated[str, tyro.conf.arg(metavar="DIR", help="train this run directory with its own settings")] = "",
        runs_dir: RunsDir = Path("runs"),
        main: tyro.conf.OmitArgPrefixes[Any] = main_flags,
        optimisation: tyro.conf.OmitArgPrefixes[Any] = optimisation_flags,
        more: tyro.conf.OmitArgPrefixes[Any] = more_flags,
        lessons: tyro.conf.OmitArgPrefixes[Any] = lesson_flags,
    ) -> int:
        """Train a network; prints the run directory first."""
        config = settings(main, optimisation, more, lessons)
        if not run and _is_torchrun_worker():  # each rank of torchrun would make a run of its own
            raise ConfigError({"run": "is missing: torchrun trains a run that exists, as in train --run runs/<id>"})
        if not run:
            place(config, list_gpus(), cpu_cores(), cpu_has_bf16())  # refused before there is a run
            return _train(Run.create(runs_dir, config, waits_here=True))
        if config != PRESETS["tutorial"]:
            raise ConfigError({"run": "a run has its own settings in its config.json; give no others beside --run"})
        return _train(_open_to_train(runs_dir, run))

    return train


def _open_to_train(runs_dir: Path, reference: str) -> Run:
    run = open_run(runs_dir, reference)
    if not RUN_ID.fullmatch(run.id):
        raise RunError(
            f"{run.path} was renamed, and is in no list and no queue: give it back a name like 20260131-235959-ddp-0a1b"
        )
    return run


def _is_torchrun_worker() -> bool:
    """RANK alone may be left over from another program."""
    return all(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))


def _train(run: Run) -> int:
    from trainer.log import tee_output

    run.config()  # refused here, with its words, rather than in a log
    if _is_torchrun_worker():
        from trainer.torchrun import join_group

        leave_now(_exit_code(join_group(run).status))
    from trainer.background import start_waiting, trainer_environment
    from trainer.processes import adopt_orphans, kill_children
    from trainer.queue import wait_for_turn
    from trainer.signals import StopOnSignal

    try:
        os.getcwd()
    except OSError:
        raise RunError("the working directory was removed: change into one that is there") from None
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as some shells leave it, it hides how a rank ended
    adopt_orphans()
    environment = trainer_environment()  # before the ranks are pinned to their devices
    sys.stdout.flush()
    with suppress(OSError):  # nobody reads it
        os.write(1, os.fsencode(run.path) + b"\n")  # as it is, whatever the locale
    with tee_output(run.log_path), StopOnSignal(run):
        placement = wait_for_turn(run)
        if placement is None:
            return COMPLETED
        from trainer.launch import launch

        try:
            status = launch(run, placement).status
        finally:
            kill_children()  # what a rank started and left behind
    with suppress(RunError):
        start_waiting(run.path.parent, environment=environment, leaving=run)
    return _exit_code(status)


def _exit_code(status: str) -> int:
    return COMPLETED if status in ("completed", "stopped") else FAILED


def resume(
    run: RunName,
    epochs: Annotated[int, tyro.conf.arg(help="train to this many epochs in all; 0: as the run has it")] = 0,
    runs_dir: RunsDir = Path("runs"),
) -> int:
    """Go on with a run from its last checkpoint."""
    from trainer.queue import locked, placement_now

    opened = _open_to_train(runs_dir, run)
    if _is_torchrun_worker():
        raise ConfigError({"run": "torchrun goes on with an ended run as it begins one: train --run runs/<id>"})
    with locked(opened.path.parent):
        placement_now(opened.config())  # refused before anything is changed
        opened.prepare_resume(epochs, waits_here=True)
    return _train(opened)


def stop(run: RunName, runs_dir: RunsDir = Path("runs")) -> int:
    """Stop a run: it saves a checkpoint and ends; within 10 seconds nothing of it is left."""
    from trainer.stop import stop_run

    opened = open_run(runs_dir, run)
    print(f"{opened.id}: {stop_run(opened)}")
    return COMPLETED


def list_(runs_dir: RunsDir = Path("runs"), json_: Annotated[Json, tyro.conf.arg(name="json")] = False) -> int:
    """List all runs, newest first."""
    rows = list_runs(runs_dir)
    if json_:
        print(json.dumps(rows))
    elif not rows:
        print(f"no runs in {runs_dir}")
    else:
        _print_table([{key: _cell(key, value) for key, value in row.items()} for row in rows])
    return COMPLETED


def _cell(key: str, value: Any) -> str:
    import time

    if value is None:
        return "-"
    match key:
        case "best_accuracy":
            return f"{value:.2%}"
        case "images_per_second":
            return f"{value:,.0f}"
        case "epoch":
            return f"{value:.2f}".rstrip("0").rstrip(".")
        case "started":
            return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))
    return str(value)


def _print_table(rows: list[dict[str, str]]) -> None:
    titles = {key: key.replace("_", " ") for key in rows[0]}
    widths = {key: max(len(row[key]) for row in [titles, *rows]) for key in titles}
    for row in [titles, *rows]:
        print(printable("  ".join(row[key].ljust(widths[key]) for key in titles).rstrip()))


def evaluate(
    run: NetworkName,
    checkpoint: Which = "best",
    tta: Tta = False,
    dataset: Annotated[str, tyro.conf.arg(help="count on this data set; else the run's own, or cifar10")] = "",
    data_dir: Annotated[str, tyro.conf.arg(help="where that data set is; else as the run has it, or data")] = "",
    runs_dir: RunsDir = Path("runs"),
    json_: Annotated[Json, tyro.conf.arg(name="json")] = False,
) -> int:
    """Count a network's answers on all test pictures."""
    named = {name: value for name, value in {"dataset": dataset, "data_dir": data_dir}.items() if value}
    chosen = PRESETS["tutorial"].changed(**named)  # refused before anything is loaded
    from trainer import predict

    try:
        predictor, opened = predict.find_predictor(runs_dir, run, checkpoint)
        config = opened.config().changed(**named) if opened else chosen.anchored()
        result = predict.evaluate(predictor, config, tta)
    except (ConfigError, RunError):
        raise
    except ValueError as error:
        return _fail(error)
    if json_:
        print(json.dumps(result))
        return COMPLETED
    print(
        f"{result['checkpoint']} of step {result['step']}{', six views a picture' if tta else ''}: "
        f"{result['accuracy']:.2%} of {result['count']} right, loss {result['loss']:.4f}"
    )
    for name, accuracy in result["per_class"].items():
        print(f"  {printable(name):<20} {'-' if accuracy is None else f'{accuracy:.2%}'}")
    return COMPLETED


def _fail(error: Exception) -> int:
    print(f"error: {error}", file=sys.stderr)
    return FAILED


def predict(
    run: NetworkName,
    images: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE...")],
    checkpoint: Which = "best",
    tta: Tta = False,
    runs_dir: RunsDir = Path("runs"),
    json_: Annotated[Json, tyro.conf.arg(name="json")] = False,
) -> int:
    """Say what is on pictures. A picture that cannot be read has its reason in its place."""
    if not images:
        raise RunError("give one picture or more")
    from trainer.predict import find_predictor, predict_files

    try:
        results = predict_files(find_predictor(runs_dir, run, checkpoint)[0], images, tta)
    except RunError:
        raise
    except ValueError as error:
        return _fail(error)
    if json_:
        print(json.dumps(results))
    else:
        for result in results:
            answer = result["error"] or f"{result['label']} ({result['probability']:.1%})"
            print(printable(f"{result['file']}: {answer}"))
    return FAILED if all(result["error"] for result in results) else COMPLETED


def export(
    run: RunName,
    output: Annotated[Path | None, tyro.conf.arg(help="the file to write; else model.safetensors in the run")] = None,
    checkpoint: Which = "best",
    half: Annotated[bool, tyro.conf.arg(help="weights in half precision: half the bytes")] = False,
    note: Annotated[str, tyro.conf.arg(help="your own words about the weights, kept in the file")] = "",
    runs_dir: RunsDir = Path("runs"),
) -> int:
    """Write a checkpoint's weights as safetensors."""
    opened = open_run(runs_dir, run)
    from trainer.predict import load_predictor
    from trainer.weights import write_weights

    target = output or opened.path / "model.safetensors"
    if target.suffix != ".safetensors" and (target.resolve().parent / "config.json").exists():
        raise RunError(f"output: {target} lies in a run directory, where only a name with .safetensors is safe")
    try:
        write_weights(load_predictor(opened, checkpoint), target, half, note)
    except (ValueError, OSError) as error:
        return _fail(error)
    print(target)
    return COMPLETED


def _leave(code: int) -> None:
    """End without the interpreter's farewell: a library that hangs in its own must not hold a device."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    open_streams()
    _leave(main(sys.argv[1:]))
