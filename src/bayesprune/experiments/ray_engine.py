"""The shards of a sweep on a Ray cluster."""

import os
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from bayesprune.errors import ClusterError, InputError
from bayesprune.experiments.engine import Crew, Outcome
from bayesprune.experiments.ray_connection import connected, import_ray
from bayesprune.experiments.ray_worker import TOKEN, Order, Reply, work
from bayesprune.experiments.shard import Shard, ShardProgress
from bayesprune.experiments.watching import SweepWatcher
from bayesprune.storage import as_path, make_folder, write_bytes

RETRIES = 3
"""How often a shard is begun again elsewhere after its worker or its node died."""
_POLL = 0.3
_SECONDS_BETWEEN_LOOKS = 30.0


class RayEngine:
    """Hands all shards to a Ray cluster, which trains as many at a time as it has GPUs or cores for.

    A shard on a GPU asks for one GPU, a shard on the processor for as many cores as ``OMP_NUM_THREADS`` says, or for one.

    Args:
        address: of a cluster: ``host:port``, ``ray://host:port`` or ``auto``; by default one is started here and stopped in the end.

    Raises:
        ClusterError: Ray is not installed, or nobody answers at the address.
    """

    work: Callable[..., Reply] = staticmethod(work)

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        import_ray(address)

    @contextmanager
    def started(self, checkpoints: Path, watcher: SweepWatcher) -> Iterator[Crew]:
        """The cluster's workers."""
        token = secrets.token_hex(16)
        make_folder(checkpoints)
        write_bytes(checkpoints / TOKEN, token.encode())
        with connected(self.address) as ray:
            crew = _Cluster(ray, self.work, checkpoints.absolute(), token, watcher, waits=self.address is not None)
            try:
                yield crew
            finally:
                crew.dismiss()


class _Cluster:
    """The driver's side: tasks that were handed in, and what is known of them."""

    def __init__(self, ray: Any, work: Callable[..., Reply], checkpoints: Path, token: str, watcher: SweepWatcher, *, waits: bool) -> None:
        self.ray, self.checkpoints, self.token, self.watcher, self.waits = ray, checkpoints, token, watcher, waits
        self.pending: dict[Any, Shard] = {}
        self.ready: deque[tuple[Shard, Reply | Exception]] = deque()
        self.places: dict[str, str] = {}
        self.lacking: dict[str, float] | None = None
        self.looked = time.monotonic()
        self.reports = _start_reports(ray)
        self.answer: Any = None
        reports = self.reports

        def train(order: Order) -> Reply:
            return work(order, lambda name, progress: reports.tell.remote(name, progress))

        self.task = ray.remote(max_retries=RETRIES, retry_exceptions=False)(train)

    def submit(self, shard: Shard) -> None:
        device = torch.device(shard.members[0].device).type
        needs = _needs(shard)
        self._check_resources(needs)
        data_dir = shard.members[0].data_dir
        data_dir = None if data_dir is None else str(as_path(data_dir).absolute())
        order = Order(shard, self.checkpoints, self.token, data_dir, device, int(needs["CPU"]))
        task = self.task.options(num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), name=f"bayesprune {shard.label}")
        self.pending[task.remote(order)] = shard

    def wait(self) -> Outcome:
        while not self.ready:
            self.ray.wait(list(self.pending), timeout=_POLL)
            done, _ = self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0)
            self._pass_on_reports()
            found = [(self.pending.pop(task), self._reply(task)) for task in done]
            # Errors last: they end the sweep, and rows that are there should be written before.
            self.ready.extend(sorted(found, key=lambda each: not isinstance(each[1], Reply) or each[1].error is not None))
            if time.monotonic() - self.looked > _SECONDS_BETWEEN_LOOKS and self.pending:
                self._check_resources(_needs(next(iter(self.pending.values()))))
        shard, reply = self.ready.popleft()
        if isinstance(reply, Exception):
            raise self._explained(shard, reply)
        if reply.error is not None:
            raise reply.error
        return shard, reply.rows

    def dismiss(self) -> None:
        """Let go of everything on the cluster."""
        for task in self.pending:
            with suppress(Exception):
                self.ray.cancel(task, force=True)
        with suppress(Exception):
            self.ray.kill(self.reports)

    def _reply(self, task: Any) -> Any:
        """What a worker answered, or the error of Ray that took its place."""
        try:
            return self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            return error

    def _explained(self, shard: Shard, error: Exception) -> Exception:
        """What an error of Ray means."""
        raised: bool = isinstance(error, self.ray.exceptions.RayTaskError)
        if raised:
            cause = getattr(error, "cause", None)
            if isinstance(cause, ImportError | AttributeError):
                return ClusterError(f"a worker of the cluster cannot begin ({cause}): install the same bayesprune on all of its machines")
            return error
        place = self.places.get(shard.name)
        return ClusterError(
            f"{shard.label} died on the cluster ({type(error).__name__}{f', last seen as {place}' * bool(place)}) and was begun again "
            f"{RETRIES} times at most: see whether its machines stay up and have enough memory; what is finished is kept: --resume"
        )

    def _pass_on_reports(self) -> None:
        """Tell the watcher what the workers have reported; without a word where that fails, since nothing depends on it."""
        try:
            if self.answer is None:
                self.answer = self.reports.latest.remote()
            if not self.ray.wait([self.answer], timeout=0)[0]:
                return
            answer, self.answer = self.answer, None
            reported = self.ray.get(answer)
        except self.ray.exceptions.RayError:
            self.answer = None
            return
        for shard in self.pending.values():
            if shard.name in reported:
                progress = ShardProgress(**reported[shard.name])
                before, self.places[shard.name] = self.places.get(shard.name), progress.place
                if before not in (None, progress.place):
                    self.watcher.say(f"{shard.label}: {before} is gone, {progress.place} goes on")
                self.watcher.shard_progressed(shard, progress)

    def _check_resources(self, needs: dict[str, float]) -> None:
        """See that some machine could take a shard: Ray would wait for one without a word, and without end."""
        self.looked = time.monotonic()
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if any(all(node.get(kind, 0) >= count for kind, count in needs.items()) for node in nodes):
            self.lacking = None
            return
        lacking = " and ".join(f"{count:g} {kind}" for kind, count in needs.items())
        if not self.waits:
            raise InputError(f"a shard needs {lacking} and this machine has less: choose another --device or a smaller OMP_NUM_THREADS")
        if self.lacking != needs:
            self.lacking = needs
            self.watcher.say(f"no machine of the cluster has {lacking}, which a shard needs: waiting for one")


def _needs(shard: Shard) -> dict[str, float]:
    """The resources of a shard, as Ray names them."""
    if torch.device(shard.members[0].device).type == "cuda":
        return {"GPU": 1, "CPU": 1}
    given = os.environ.get("OMP_NUM_THREADS", "")
    return {"CPU": int(given) if given.isdecimal() and int(given) > 0 else 1}


def _start_reports(ray: Any) -> Any:
    """An actor that workers tell how far they are, beside the driver, so that it does not die with one of them."""

    class Reports:
        # Inside a function Ray sends the class along, and its process need not import torch.
        def __init__(self) -> None:
            self.progress: dict[str, dict[str, Any]] = {}

        def tell(self, name: str, progress: dict[str, Any]) -> None:
            self.progress[name] = progress

        def latest(self) -> dict[str, dict[str, Any]]:
            found, self.progress = self.progress, {}
            return found

    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(Reports).remote()
