"""What the tests of several processes do in each of them; a module of its own, which new processes can import."""

import contextlib
import gc
import io
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bayesprune as bp
from bayesprune import cli
from bayesprune.data import Split, TensorBatches
from bayesprune.errors import BayespruneError
from bayesprune.experiments import RunConfig, run_main_job
from bayesprune.gates import METHODS, gates
from bayesprune.models.dropout import KeyedDropout
from bayesprune.training.distributed import launched
from bayesprune.training.evaluation import evaluate
from bayesprune.training.rank_batches import shared
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.sources import LoaderBatches
from bayesprune.training.trainer import StageTrainer
from bayesprune.training.watching import Silent

SEED = 5
CLASSES = 4
CASES = [None, *METHODS]


def network(method):
    """Convolutions, batch norms of both kinds, and dropout of ours and of torch's; a parameter that is never used."""
    torch.manual_seed(0)
    plain = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(),
        KeyedDropout(0.2), nn.Linear(80, 12), nn.BatchNorm1d(12, momentum=None), nn.ReLU(), nn.Dropout(0.3), nn.Linear(12, CLASSES),
    )  # fmt: skip
    plain.unused = nn.Parameter(torch.ones(3))
    if method is None:
        return plain.double()
    gated = bp.sparsify(plain, "bb" if method == "dbb" else method, example_inputs=torch.randn(2, 1, 8, 8))
    gated = bp.make_dependent(gated) if method == "dbb" else gated
    return gated.double()


def images(count=23):
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64) + 3.0, labels


def loader(count=23, batch_size=7, shuffle=True):
    """Batches of 7, 7, 7 and 2: the last has fewer samples than there are processes."""
    return DataLoader(TensorDataset(*images(count)), batch_size=batch_size, shuffle=shuffle)


def tensor_batches(batch_size=7):
    pixels = (images()[0] * 40).clamp(0, 255).to(torch.uint8)
    return TensorBatches(Split(pixels, images()[1]), (0.3,), (0.25,), batch_size, dtype=torch.float64, augment=True)


def weighted_loss(outputs, targets):
    """A mean that is none over samples, so that parts cannot be averaged by their sizes."""
    weights = torch.arange(1.0, CLASSES + 1, dtype=outputs.dtype)
    return F.cross_entropy(outputs, targets, weight=weights)


def gradients(method, source, loss=F.cross_entropy):
    """Loss, gradients and buffers after each batch of an epoch, without an update."""
    model = network(method)
    trainer = StageTrainer([model], source, StageRecipe(epochs=1, lr=1e-2), loss, kl_scales=[2.0], seeds=[SEED])
    model.train()
    for norm in trainer.frozen_norms:
        norm.eval()
    step, steps = trainer.step, len(source)
    step.begin(step.keys.for_steps(0, steps), torch.ones(steps), torch.ones(steps))
    step.keys.attach()
    torch.manual_seed(1)
    found = []
    for inputs, targets in source.epoch([SEED], 0):
        model.zero_grad()
        losses = step.losses(inputs, targets)
        losses.sum().backward()
        of_parameters = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers() if buffer is not None}
        found.append((losses.item(), of_parameters, buffers))
        step.position += 1
    return found


def all_gradients(wrap=lambda source: source):
    """For every method, with a loader; once with data on the device and crops, once with another loss."""
    found = {str(method): gradients(method, wrap(LoaderBatches(loader(), "cpu"))) for method in CASES}
    found["tensors"] = gradients("bb", wrap(tensor_batches()))
    found["weighted"] = gradients("dbb", wrap(LoaderBatches(loader(), "cpu")), weighted_loss)
    return found


def evaluations(wrap=lambda source: source):
    model = network("dbb")
    one, several = LoaderBatches(loader(), "cpu"), LoaderBatches(loader(batch_size=4), "cpu")
    torch.manual_seed(9)
    regression = F.mse_loss, LoaderBatches(DataLoader(TensorDataset(images()[0], torch.zeros(23, CLASSES)), batch_size=30), "cpu")
    return [
        *(evaluate(model, wrap(source), F.cross_entropy) for source in (one, several)),
        evaluate(model, wrap(regression[1]), regression[0]),
    ]


class StopAfter(Silent):
    def __init__(self, epochs):
        self.epochs = epochs

    def epoch_finished(self, row):
        self.epochs -= 1
        if not self.epochs:
            raise InterruptedError


def called(*arguments):
    """Exit code and outputs of the command line."""
    sys.argv = ["bayesprune", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as stopped:
            return stopped.code, out.getvalue(), err.getvalue()
    raise AssertionError


def raised(action):
    try:
        action()
    except BayespruneError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError


def fitted(**options):
    settings = {"epochs": 3, "validation": loader(shuffle=True), "progress": False, "tradeoff": 0.5}
    return bp.fit(network(None), loader(), **(settings | options))


def poisoned():
    """Of the first batch the last sample is not a number: the last process alone sees it."""
    inputs, labels = images()
    inputs[6] = torch.nan
    return DataLoader(TensorDataset(inputs, labels), batch_size=7)


def refusals(rank, folder):
    """What each process raises."""
    foreign = folder / "foreign"
    if rank == 0:
        foreign.mkdir()
        (foreign / "something").touch()
    distributed = DataLoader(TensorDataset(*images()), batch_size=7, sampler=DistributedSampler(TensorDataset(*images())))
    return {
        "diverged": raised(lambda: bp.fit(network(None), poisoned(), progress=False)),
        "sampler": raised(lambda: bp.fit(network(None), distributed, progress=False)),
        "options": raised(lambda: fitted(seed=rank)),
        "folder": raised(lambda: fitted(checkpoints=foreign)),
    }


def own_gradient(model, rank):
    """Of a model that was trained by all processes, and belongs to each of them afterwards."""
    model.eval()(images()[0] + rank).square().mean().backward()
    return dict(model.named_parameters())["0.weight"].grad


def work_on_gradients(rank, world, folder):
    with launched() as ranks:
        assert (ranks.rank, ranks.size) == (rank, world)
        return {"gradients": all_gradients(lambda source: shared(source, ranks)), "evaluations": evaluations(lambda s: shared(s, ranks))}


def work_on_runs(rank, world, folder):
    gc.disable()  # What is left behind must not depend on it.
    torch.manual_seed(rank)  # Nothing may depend on what a user's generators are at.
    config = RunConfig(method="bb", epochs=2, tradeoff=0.1, data_dir=str(folder / "digits"))
    with launched() as ranks:
        run_main_job(config, folder / "through", Silent(), ranks)
        for name, epochs in (("handed", 1), ("stopped", 3)):
            with contextlib.suppress(InterruptedError):
                run_main_job(config, folder / name, StopAfter(epochs), ranks)
        dist.barrier()
        run_main_job(config, folder / "stopped", Silent(), ranks)
    result = fitted(checkpoints=folder / "fit")
    again = fitted(checkpoints=folder / "fit")
    same = all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in result.model.state_dict().items())
    return {
        "gradient": own_gradient(result.model, rank),
        "fit": (result.model.state_dict(), result.history, [gate.keep().tolist() for gate in gates(result.model).values()]),
        "again": same and again.history == result.history if rank == 0 else same,
        "refusals": refusals(rank, folder),
        "unknown": called("run", "--network", "nonsense"),
        "sweep": called("sweep", "--epochs", 1),
        "finished": called("run", "--resume", folder / "through"),
    }


WORK = {"gradients": work_on_gradients, "runs": work_on_runs}


def start(rank, world, name, folder):
    """A process of a group that finds itself by a file, so that tests side by side need no ports."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    torch.save(WORK[name](rank, world, Path(folder)), f"{folder}/{name}-{rank}.pt")
    dist.destroy_process_group()
