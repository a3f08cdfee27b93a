"""TrainingWatch in several processes: ranks whose weights part, and sharded parameters. See tests/ranks.py."""

from __future__ import annotations

import functools
import tempfile
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ditorch.backends.sim import SIM
from ditorch.redirect import Redirect
from op_tools.core.steps import STEPS
from op_tools.watch import TrainingWatch

from ... import ranks
from .training import model, train

SIZE = 2
pytestmark = pytest.mark.slow


def start_rank(rank):
    warnings.simplefilter("ignore", FutureWarning)  # PyTorch's own, about names that it uses itself
    SIM.start()
    Redirect(SIM)
    torch.cuda.set_device(rank)
    return "cuda"


def shared_folder():
    """The same in all ranks."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    return folder[0]


def watched(rank, steps, net, spoil=lambda step, net: None):
    """Losses, alerts, and whether the file says that parameters are sharded; rank 0 stops last."""
    STEPS.forget()
    watch = TrainingWatch(out=shared_folder(), verbose=0, every=1).start()
    losses = train("cuda", steps, net, spoil=spoil)
    if rank:
        watch.stop()
    dist.barrier()
    if not rank:
        watch.stop()
    dist.barrier()
    with open(watch.results.files[0]) as file:
        is_sharded = '"sharded": true' in file.readline()
        norms = [line.partition('"gradient_norm": ')[2].partition(",")[0] for line in file if '"step"' in line]
    return {
        "losses": losses,
        "alerts": [(alert["step"], alert["rule"], alert["text"]) for alert in watch.results],
        "sharded": is_sharded,
        "norms": [float(norm) for norm in norms],
    }


def do_replicas(rank, device):
    plain = train("cuda", 4, DistributedDataParallel(model("cuda")))
    return plain, watched(rank, 4, DistributedDataParallel(model("cuda")))


def do_replicas_that_part(rank, device):
    def spoil(step, net):
        if step == 2 and rank == 1:
            net.module[3].weight.data[0, 0] += 1e-3

    return watched(rank, 6, DistributedDataParallel(model("cuda")), spoil)


def do_shards(rank, device):
    from torch.distributed.fsdp import fully_shard

    def sharded():
        net = model("cuda")
        fully_shard(net[2])
        return fully_shard(net) or net

    return train("cuda", 3, sharded()), watched(rank, 3, sharded())


def do_one_that_was_never_wrapped(rank, device):
    """Ranks that train models of their own are no replicas."""
    torch.manual_seed(rank)
    return watched(rank, 3, nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4)).cuda().requires_grad_())


@pytest.fixture(scope="module")
def results(tmp_path_factory, worker_id):
    return functools.partial(ranks.read, ranks.start(__name__, SIZE, "nccl", tmp_path_factory, worker_id))


def test_replicas_that_agree_are_no_alarm(results):
    for plain, found in results(do_replicas):
        assert found["losses"] == plain
        assert found["alerts"] == []
        assert not found["sharded"]


def test_replicas_that_part_are_told_by_rank_0(results):
    first, second = results(do_replicas_that_part)
    text = "ranks part: after step 2 the weights of rank 1 are not those of rank 0"
    assert first["alerts"] == [[2, "ranks", text]]
    assert second["alerts"] == []


def test_shards_have_figures_of_their_own(results):
    (plain, first), (_, second) = results(do_shards)
    assert first["losses"] == plain
    assert first["sharded"]
    assert second["sharded"]
    assert first["norms"] != second["norms"]
    assert first["alerts"] == second["alerts"] == []


def test_models_that_are_no_replicas_are_not_compared(results):
    assert [found["alerts"] for found in results(do_one_that_was_never_wrapped)] == [[], []]
