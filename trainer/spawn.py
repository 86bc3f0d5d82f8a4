"""ddp: one process a rank, started, watched and ended from here."""

import json
import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

from trainer.blame import blame_silence, find_blame
from trainer.config import TrainConfig
from trainer.outcome import Outcome
from trainer.placement import Placement
from trainer.processes import leave_now, leave_when_parent_dies
from trainer.pulse import Board, Phase, Silence, Watch
from trainer.ranks import RankRecord
from trainer.runs import Run
from trainer.work import run_rank

SPAWN_POLL = 0.2  # seconds
PEER_GRACE = 5  # seconds that the other ranks get to leave after one has died
OWN_STORE = 30  # seconds to reach the store that is in this very process, and what it answers
LAST_RESORT = 30  # seconds beyond the silence limit: the watch, which knows whom to blame, comes first


def train_in_ranks(run: Run, config: TrainConfig, placement: Placement, data_path: Path, board: Board) -> Outcome:
    """Train in `world_size` processes that meet at a store of this process, on a port that the kernel chose.

    They give their signs of progress to `board`.

    Raises Blame if one of them fails, dies, leaves early or stays silent for longer than the silence limit.
    """
    patience = timedelta(seconds=min(config.silence_limit, OWN_STORE))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=patience)
    arguments = (run.path, config, placement, data_path, store.port, board)
    context = mp.start_processes(_rank_main, arguments, nprocs=placement.world_size, join=False, start_method="spawn")
    assert context is not None
    try:
        _follow(context, store, run, Watch(board, config.silence_limit, context.pids()))
    except (mp.ProcessRaisedException, mp.ProcessExitedException) as error:
        raise find_blame(_records(run, store, board), error) from error
    finally:
        for process in context.processes:
            process.kill()
        for process in context.processes:
            process.join(PEER_GRACE)
    records = _records(run, store, board)
    outcomes = [record["done"] for record in records if "done" in record]
    if len(outcomes) < placement.world_size:  # exit code 0 alone proves nothing
        raise find_blame(records, None)
    return Outcome(**outcomes[0])


def _follow(context: mp.ProcessContext, store: dist.TCPStore, run: Run, watch: Watch) -> None:
    """Return when all ranks have left with exit code 0. Raises what `context` raises for any other, and Blame."""
    while not context.join(timeout=SPAWN_POLL, grace_period=PEER_GRACE):
        if silence := watch.look():
            raise blame_silence(_or_who_did_not_join(silence, store, run, watch.board))
        gone = [rank for rank, process in enumerate(context.processes) if _left_early(rank, process, store)]
        if gone:
            raise find_blame(_records(run, store, watch.board), None, gone)
        run.keep_claim()
        if not run.is_there:  # deleted: there is nothing left to train for
            raise KeyboardInterrupt


def _or_who_did_not_join(silence: Silence, store: dist.TCPStore, run: Run, board: Board) -> Silence:
    """Of ranks that all wait to join, the one that has not left its address in the store."""
    if silence.phase != Phase.JOINING:
        return silence
    tails = (key.rsplit("/", 1)[-1] for key in store.list_keys() if key.startswith(run.id))
    missing = set(range(board.world_size)) - {int(tail) for tail in tails if tail.isdigit()}
    return replace(silence, rank=min(missing)) if missing else silence


def _left_early(rank: int, process: Any, store: dist.TCPStore) -> bool:
    """Whether it left without having done its work, though with exit code 0: so does one that gets SIGINT."""
    if process.exitcode != 0:
        return False
    return not store.check([_last_word(rank)]) or "done" not in json.loads(store.get(_last_word(rank)))


def _records(run: Run, store: dist.TCPStore, board: Board) -> list[dict[str, Any]]:
    """What the ranks said last: through the store, which a full disk does not silence, else in their files.

    The step comes from the board, which is never late.
    """
    found = {record["rank"]: record for record in run.rank_records()}
    for rank in range(board.world_size):
        if store.check([_last_word(rank)]):
            found[rank] = json.loads(store.get(_last_word(rank)))
        if rank in found:
            found[rank]["step"] = max(found[rank]["step"], board.read(rank)[2])
    return [found[rank] for rank in sorted(found)]


def _last_word(rank: int) -> str:
    return f"last word of rank {rank}"


def _rank_main(
    rank: int, path: Path, config: TrainConfig, placement: Placement, data_path: Path, port: int, board: Board
) -> None:
    """Where a spawned rank begins."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the launcher turns it into a stop
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as does a closed terminal
    leave_when_parent_dies()
    run = Run(path)
    record = RankRecord(run, rank, board)
    timeout = timedelta(seconds=config.silence_limit + LAST_RESORT)
    store = None
    try:
        record.at(Phase.JOINING)
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
        dist.init_process_group(
            placement.backend,
            store=dist.PrefixStore(run.id, store),
            rank=rank,
            world_size=placement.world_size,
            timeout=timeout,
        )
        record.done(vars(run_rank(run, config, placement, data_path, record, rank)))
        record.at(Phase.ENDING)
        store.set(_last_word(rank), json.dumps(record.values))
        dist.destroy_process_group()
    except BaseException as error:
        record.failed(error)
        if store is not None:
            store.set(_last_word(rank), json.dumps(record.values))
        raise
    leave_now()
