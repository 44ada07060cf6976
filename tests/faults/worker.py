"""One rank of a run that the harness disturbs, in a process of its own."""

import hashlib
import os
import signal
import sys
import traceback
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent / "training"))  # for synthetic.py


def work(folder, rank, size, port, changes):
    """Train in `folder` to the end; exit code 0 done, 3 stopped by a signal, 2 the user's mistake, 1 a crash.

    All that is said goes to folder/log; folder/start gets the step it went on from, folder/weights-RANK.pt
    what came out.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the harness ends its workers itself
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if size > 1:
        os.environ.update(
            LOCAL_RANK=str(rank),
            RANK=str(rank),
            WORLD_SIZE=str(size),
            LOCAL_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
    os._exit(_train(folder, rank, changes))


def _train(folder, rank, changes):
    import torch
    from synthetic import resume, run_config

    from ds_minimodel.common.errors import OtherRankFailed, UserError
    from ds_minimodel.training.checkpoints.checkpoints import Checkpoints
    from ds_minimodel.training.ranks.signals import Stopped
    from ds_minimodel.training.ranks.world import join_ranks

    load_newest = Checkpoints.load_newest

    def load_and_tell(self):
        step = load_newest(self)
        if rank == 0:
            (folder / "start").write_text(str(step))
        return step

    try:
        with mock.patch.object(Checkpoints, "load_newest", load_and_tell):
            weights = resume(join_ranks(), folder / "run", run_config(**changes))
        torch.save(weights, folder / f"weights-{rank}.pt")
        return 0
    except Stopped:
        return 3
    except UserError as error:
        print(f"user error: {error}", flush=True)
        return 2
    except OtherRankFailed as error:
        return 2 if error.is_users_mistake else 1
    except BaseException:
        traceback.print_exc()
        return 1


def weights_hash(path):
    """Hash of names and bits of what a rank wrote."""
    import torch

    digest = hashlib.sha256()
    for name, weight in sorted(torch.load(path, weights_only=True).items()):
        digest.update(name.encode() + weight.numpy().tobytes())
    return digest.hexdigest()
