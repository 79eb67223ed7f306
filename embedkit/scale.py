"""Tasks on worker processes, which are replaced when they are killed.

Nothing here knows what a task does; one that is run again must have the same result.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain, pairwise
from typing import Any, TypeVar

from embedkit.errors import UsageError
from embedkit.machine import of_all_threads

logger = logging.getLogger(__name__)

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")

ATTEMPTS = 3
"""A task that ends so many processes is given up."""

_of_worker: list[Any] = []  # in a worker: what its tasks share


def one_ahead(function: Callable[[T], R], items: Iterable[T]) -> Generator[R]:
    """Yield results in the order of the items; a thread works on the next one meanwhile."""
    with ThreadPoolExecutor(1, thread_name_prefix="embedkit-ahead") as thread:
        # a generator: pairwise asks for the next future, which submits it, before it gives out the
        # pair with the one before. The empty future ends the last pair and is never waited for
        futures = (thread.submit(function, item) for item in items)
        for future, _ in pairwise(chain(futures, [Future[R]()])):
            yield future.result()


def run_locally(
    function: Callable[[S, T], R], shared: Sequence[S], tasks: Iterable[T], *, threads: int
) -> Generator[tuple[T, R | None]]:
    """Yield tasks and their results in the order in which they end, ``None`` for one given up.

    ``function``, which a worker finds by its name, gets the worker's value of ``shared`` and a
    task. ``threads`` are those of the libraries in each worker. An exception of a task is raised
    here, after the workers were ended.
    """
    pools = [_worker(value, threads) for value in shared]
    todo, ends = deque(tasks), Counter[T]()
    running: dict[Future[R], tuple[int, T]] = {}
    idle = list(range(len(pools)))

    def begin() -> None:
        while idle and todo:
            place, task = idle.pop(), todo.popleft()
            try:
                future = pools[place].submit(_call, function, task)
            except BrokenProcessPool:  # by its last task, or while it had nothing to do
                pools[place] = _worker(shared[place], threads)
                future = pools[place].submit(_call, function, task)
            running[future] = place, task

    try:
        # a process that cannot begin would take all attempts of all tasks
        try:
            for begun in [pool.submit(int) for pool, _ in zip(pools, todo, strict=False)]:
                begun.result()
        except BrokenProcessPool as error:
            problem = (
                "a worker process ended before its first task. Use fewer if memory is short; a "
            )
            problem += "script has to be a file, with the call below if __name__ == '__main__'."
            raise UsageError(problem, workers=len(pools)) from error
        while todo or running:
            begin()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                place, task = running.pop(future)
                idle.append(place)
                if future.exception() is None:
                    begin()  # the caller may take its time with the result
                try:
                    yield task, future.result()
                # the process was killed, by the system for lack of memory as a rule: a new one
                # takes its place for the next task, and this one is tried again, after all others
                except BrokenProcessPool:
                    yield from _ended(task, todo, ends)
        for pool in pools:
            pool.shutdown()
    finally:
        for pool in pools:
            # after an error, or if the caller stops: a running task cannot be cancelled, so that
            # its process is ended; shutdown alone would wait for it
            for process in list((pool._processes or {}).values()):
                process.terminate()
            pool.shutdown(cancel_futures=True)


def _ended(task: T, todo: deque[T], ends: Counter[T]) -> Iterator[tuple[T, None]]:
    """Try a task that has ended its process again, after all others, or give it up."""
    ends[task] += 1
    if ends[task] < ATTEMPTS:
        todo.append(task)
    else:
        yield task, None


def _worker(shared: Any, threads: int) -> ProcessPoolExecutor:
    """A pool of one process, so that it is known which task ended it."""
    # spawn: a fork would copy threads of torch that no longer run, and CUDA does not survive one
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawn, initializer=_begin, initargs=(shared, threads))


def _begin(shared: Any, threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that began this one ends it
    logging.getLogger("embedkit").setLevel(logging.ERROR)  # each would repeat the same notes
    _of_worker[:] = [shared]
    _set_threads(threads)
    # a parent that is killed cannot end its workers: each waits for that by itself
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _set_threads(threads: int) -> None:
    import torch

    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of the tokenizer
    torch.set_num_threads(threads)


def _end_with(parent: Any) -> None:
    parent.join()
    # sys.exit would end this thread alone
    os._exit(1)


def _call(function: Callable[[Any, Any], R], task: Any) -> R:
    return function(_of_worker[0], task)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Compute on the host and in the precision of the weights, whatever the caller has switched on.

    Within ``torch.autocast`` products would be of half precision, and vectors said to be fp32 off
    in the third digit; with ``torch.set_default_device`` what is prepared on the host would be
    somewhere else. Both are of the caller's thread; ``torch.set_default_dtype`` is of the process.
    """
    import torch

    with _new_tensors_of_float32(), ExitStack() as stack:
        for kind in ("cpu", "cuda", "mps"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        # torch.get_default_device() of torch 2.6 does not know of a device that is a context
        if torch.empty(0).device.type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield


@of_all_threads
def _new_tensors_of_float32() -> Callable[[], object]:
    """As weights are made that say nothing else: heads, and the scales of int8.

    Instead of float64 alone, which a script sets for good: transformers sets half precision for as
    long as another thread loads a model, and giving that back later would leave it for ever.
    """
    import torch

    if torch.get_default_dtype() != torch.float64:
        return int  # nothing to undo
    torch.set_default_dtype(torch.float32)
    return partial(torch.set_default_dtype, torch.float64)


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Give the caller's generators back as they were: a training seeds all of them."""
    import numpy as np
    import torch

    python, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002
    # the device that is in use, if one is: others would be started by the question
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if in_use else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)  # noqa: NPY002


@contextmanager
def threads_limited(threads: int) -> Iterator[None]:
    """Limit the threads of torch."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_on_ray(
    function: Callable[[S, T], R],
    shared: S,
    tasks: Iterable[T],
    *,
    workers: int,
    threads: int,
    address: str | None = None,
    gpus: float = 0.0,
) -> Generator[tuple[T, R | None]]:
    """As :func:`run_locally`, in the processes of a Ray cluster, which keep what they have loaded.

    So many ``workers`` run at a time, each with ``threads`` cores and ``gpus`` of the cluster at
    ``address``; by default ``RAY_ADDRESS``, the one that runs here, or a new one.
    """
    try:
        import ray
    except ImportError as error:
        raise UsageError("it needs Ray: pip install 'ray>=2.40'.", engine="ray") from error
    # a cluster that the caller has joined stays joined
    started = not ray.is_initialized()
    if started:
        _check_reached(address or os.environ.get("RAY_ADDRESS", ""))
        terminated = signal.getsignal(signal.SIGTERM)
        ray.init(address, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
        # signals can be set in the main thread alone; None: the handler was not set from Python
        if threading.current_thread() is threading.main_thread() and terminated is not None:
            signal.signal(signal.SIGTERM, terminated)  # Ray's handler ends with another exit code
    running: dict[Any, T] = {}
    try:
        options: dict[str, Any] = {"num_cpus": threads, "num_gpus": gpus, "max_calls": 0}
        # clusters may grow: what is missing now is waited for, but not in silence
        needed = {"CPU": threads, "GPU": gpus}
        nodes = [node["Resources"] for node in ray.nodes()]  # type: ignore[no-untyped-call]
        if not any(all(node.get(k, 0) >= n for k, n in needed.items()) for node in nodes):
            logger.warning(f"no machine of the Ray cluster has {needed} yet; waiting for one")
        # Ray itself would repeat a task without end that was killed for lack of memory
        begin: Any = ray.remote(max_retries=0, **options)(_on_ray)
        # sent once to each machine, not with every task
        value, todo, ends = ray.put(shared), deque(tasks), Counter[T]()
        while todo or running:
            while todo and len(running) < workers:
                task = todo.popleft()
                running[begin.remote(function, value, task, threads)] = task
            done, _ = ray.wait(list(running))
            for reference in done:
                task = running.pop(reference)
                try:
                    yield task, ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    # the exception as the task raised it, without Ray's wrapping
                    raise error.cause from error
                except ray.exceptions.RaySystemError:
                    raise
                except ray.exceptions.RayError:  # its process was killed
                    yield from _ended(task, todo, ends)
    finally:
        for reference in running:  # if the caller stops
            ray.cancel(reference)
        if started:
            ray.shutdown()


def _check_reached(address: str) -> None:
    """Raise if nothing listens at ``HOST:PORT``, for which Ray would wait for minutes."""
    # without ray:// in front, and without the brackets of an IPv6 address below
    host, _, port = address.rpartition("/")[2].rpartition(":")
    try:
        if port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"no Ray cluster can be reached: {error}.", address=address) from error


def _on_ray(function: Callable[[S, T], R], shared: S, task: T, threads: int) -> R:
    _set_threads(threads)
    return function(shared, task)
