"""The processes that train one model together: who they are, and what the first of them does for all."""

import itertools
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bayesprune.errors import BayespruneError, InputError
from bayesprune.noise import Share

T = TypeVar("T")

_TIMEOUT = timedelta(minutes=30)
"""So long the others wait for a process that is busy alone (compacting, measuring), or is gone without a trace."""
_FAREWELL = timedelta(seconds=10)
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What ``torchrun`` sets for each process."""
_meetings = itertools.count()


@dataclass(frozen=True)
class Ranks:
    """This process among those that train one model.

    Attributes:
        rank: its number, from 0 on.
        size: how many there are.
        local_rank: its number on this computer.
        control: the group for messages, apart from the one for tensors of the training.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    control: "dist.ProcessGroup | None" = None

    @property
    def alone(self) -> bool:
        return self.size == 1

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def device(self, wanted: torch.device) -> torch.device:
        """The device of this process: of several GPUs each has its own."""
        if self.alone or wanted.type != "cuda":
            return wanted
        available = torch.cuda.device_count()
        if self.local_rank >= available:
            raise InputError(
                f"there is no GPU for process {self.local_rank + 1} on this computer, which has {available}: "
                f"start torchrun with --nproc-per-node={available}, or choose --device cpu"
            )
        return torch.device("cuda", self.local_rank)

    def share(self, total: int) -> Share:
        """The samples of this process in a batch of so many: neighbours, and as many as the others have or one less."""
        start, stop = self.rank * total // self.size, (self.rank + 1) * total // self.size
        return Share(start, stop, total) if start < stop else Share(total - 1, total, total, counted=False)

    def first(self, action: Callable[[], T]) -> T:
        """What the action gives or raises in the first process, which alone carries it out, for all."""
        if self.alone:
            return action()
        outcome: list[Any] = [BayespruneError("the first process stopped with an error")]
        if self.is_first:
            try:
                outcome = [(action(),)]
            except BayespruneError as error:
                outcome = [error]
            except Exception:
                self._broadcast(outcome)  # The others must not wait for what will not come.
                raise
        self._broadcast(outcome)
        if isinstance(outcome[0], BayespruneError):
            raise outcome[0]
        result: T = outcome[0][0]
        return result

    def _broadcast(self, message: list[Any]) -> None:
        dist.broadcast_object_list(message, src=0, group=self.control)

    def require_same(self, what: str, description: object) -> None:
        """Refuse to go on where the processes were given different things; they are compared by their pickles."""
        if self.alone:
            return
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, pickle.dumps(description), group=self.control)
        if len(set(found)) > 1:
            raise InputError(f"the processes that train one model were given different {what}: call fit with the same arguments in all")

    def take_over(self, model: nn.Module) -> None:
        """Give the model the first process's values."""
        if not self.alone:
            model.load_state_dict(self.first(lambda: {name: tensor.cpu() for name, tensor in model.state_dict().items()}))

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the processes' tensors, which it takes the place of."""
        if not self.alone:
            dist.all_reduce(tensor)
        return tensor

    def all_stopped(self) -> bool:
        """Whether all processes come here within seconds: those that stopped for the same reason do."""
        try:
            dist.monitored_barrier(group=self.control, timeout=_FAREWELL)
        except RuntimeError:
            return False
        return True


ALONE = Ranks()


def is_launched() -> bool:
    """Whether ``torchrun`` started this process as one of several."""
    return all(name in os.environ for name in _VARIABLES) and os.environ["WORLD_SIZE"] != "1"


@contextmanager
def launched() -> Iterator[Ranks]:
    """The processes that ``torchrun`` started, or that a group of the user's own unites; otherwise this one alone.

    A group that is made here, gloo for processors and NCCL for GPUs, ends here too.
    """
    own = is_launched() and not (dist.is_available() and dist.is_initialized())
    if own and not dist.is_available():
        raise InputError("torch was built without torch.distributed: start without torchrun")
    if own:
        _join()
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        yield ALONE
        return
    local_rank = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
    if own and local_rank < torch.cuda.device_count():
        torch.cuda.set_device(local_rank)
    control = dist.new_group(backend="gloo", timeout=_TIMEOUT)
    try:
        yield Ranks(dist.get_rank(), dist.get_world_size(), local_rank, control)
    finally:
        dist.destroy_process_group(None if own else control)


def _join() -> None:
    gpus = torch.cuda.is_available() and dist.is_nccl_available()
    try:
        store, rank, size = _meeting_place()
        # The addresses of a group that has ended stay in the store, so every group has a part of it for itself; torchrun may have started
        # the processes anew.
        life = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        part = dist.PrefixStore(f"bayesprune/{life}/{next(_meetings)}", store)  # type: ignore[attr-defined]
        dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=_TIMEOUT, store=part, rank=rank, world_size=size)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"this process cannot join the others that torchrun started: {reason}") from error


@cache
def _meeting_place() -> tuple[Any, int, int]:
    """The store that the processes have in common, the number of this one, and how many there are."""
    from torch.distributed.rendezvous import rendezvous  # Not there if torch was built without torch.distributed.

    found: tuple[Any, int, int] = next(rendezvous("env://", timeout=_TIMEOUT))
    return found
