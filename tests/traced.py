"""A device that computes nothing and forbids what would make a real one slow, or wrong.

Tensors on the ``meta`` device have shapes and dtypes but no values. While a :class:`Device` is
entered, they stand for those of a CUDA device: every operation on them is counted as a launch, and
the first one that would make the host wait, that mixes floating dtypes or that reads what is not
there yet raises a :class:`FaultError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from embedkit.encoding import device as device_module

META = torch.device("meta")

_WAITS = {
    "_local_scalar_dense", "item", "is_nonzero", "nonzero", "nonzero_numpy", "masked_select",
    "unique", "_unique2", "unique_consecutive", "unique_dim", "equal", "allclose", "bincount",
    "_assert_async", "masked_scatter_",
}  # fmt: skip
"""Operations whose result, or its shape, is known when the device is done."""

_INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")

_NO_LAUNCH = {
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "detach", "alias",
    "lift_fresh", "_unsafe_view", "_reshape_alias",
}  # fmt: skip


class FaultError(AssertionError):
    """Something that a device must not be made to do."""


class Stream:
    """Work in order: how much of the default stream's work it has waited for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.waited = 0
        self.reached: list[Event] = []

    def wait_event(self, event: Event) -> None:
        if event.position is None:
            raise FaultError("an event is waited for that was never recorded")
        self.waited = max(self.waited, event.position)
        self.reached.append(event)

    def synchronize(self) -> None:
        for event in self.reached:
            event.done = True
        self._device.in_flight = {
            start: stream for start, stream in self._device.in_flight.items() if stream is not self
        }


class Event:
    """A point in the work of the default stream."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.position: int | None = None
        self.done = False

    def record(self, stream: Stream) -> None:
        if stream is not self._device.default:
            raise FaultError("an event is recorded on another stream than that of the work")
        self.position = len(self._device.launches)

    def elapsed_time(self, other: Event) -> float:
        if not (self.done or other.done):
            raise FaultError("times are read before the work is done")
        return 1.0


class Device(TorchDispatchMode):
    """The rules; enter it around what is to be tested.

    Attributes:
        launches: names of the operations that a device was given.
    """

    def __init__(self, *, one_dtype: bool = True) -> None:
        super().__init__()
        self.launches: list[str] = []
        self.default = Stream(self)
        self.current = self.default
        self.in_flight: dict[int, Stream] = {}
        self.events: list[Event] = []
        self._one_dtype = one_dtype
        self._pinned: set[int] = set()
        self._written: dict[int, int] = {}
        self._factories: list[tuple[Any, Any]] = []

    def __enter__(self) -> Device:
        self._factories.append((torch.tensor, torch.as_tensor))
        torch.tensor, torch.as_tensor = (_on_host_only(f) for f in self._factories[-1])
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.tensor, torch.as_tensor = self._factories.pop()

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory of the host that knows when the device is using it."""
        buffer = torch.zeros(shape, dtype=dtype)
        start = buffer.untyped_storage().data_ptr()
        self._pinned.add(start)
        self.in_flight.pop(start, None)  # torch gives memory out again when its copy is done
        numpy = buffer.numpy

        def checked() -> Any:
            if start in self.in_flight:
                raise FaultError("the host touches memory that a copy is still using")
            return numpy()

        buffer.numpy = checked  # type: ignore[method-assign, assignment]
        return buffer

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Stands for torch.cuda.stream."""
        before, self.current = self.current, stream
        yield
        self.current = before

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:  # in inference mode operations arrive that are made of others
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        name = func.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        on_device = [tensor for tensor in tensors if tensor.is_meta]
        if on_device:
            self._check(name, args, kwargs, on_device)
        if name in ("_to_copy", "copy_") and self._crosses(name, args, kwargs):
            return self._copy(name, func, args, kwargs)
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_meta]
        if (on_device or made) and name not in _NO_LAUNCH and not _is_view(func):
            self._launch(name, made)
        return result

    def _launch(self, name: str, made: list[Tensor]) -> None:
        if self.current is not self.default:
            raise FaultError(f"{name} runs on another stream than the rest of the work")
        self.launches.append(name)
        for tensor in made:
            self._written[_start(tensor)] = len(self.launches)

    def _check(self, name: str, args: Any, kwargs: Any, on_device: list[Tensor]) -> None:
        if name in _WAITS:
            raise FaultError(f"{name} waits for the device")
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            raise FaultError("repeat_interleave without output_size waits for the device")
        masks = (torch.bool, torch.uint8)
        if name in _INDEXED and any(i is not None and i.dtype in masks for i in args[1]):
            raise FaultError(f"{name} by a mask waits for the device")
        floats = {tensor.dtype for tensor in on_device if tensor.is_floating_point()}
        if self._one_dtype and len(floats) > 1:
            raise FaultError(f"{name} mixes {' and '.join(sorted(map(str, floats)))}")

    def _crosses(self, name: str, args: Any, kwargs: Any) -> bool:
        """Whether a copy goes from the host to the device or back."""
        if name == "copy_":
            return bool(args[0].is_meta != args[1].is_meta)
        target = kwargs.get("device")
        return target is not None and (str(target) == "meta") != args[0].is_meta

    def _copy(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = args[:2] if name == "copy_" else args[:1]
        blocks = not (kwargs.get("non_blocking") or (name == "copy_" and args[2:3] == (True,)))
        host = [tensor for tensor in tensors if not tensor.is_meta]
        if blocks or not host or host[0].untyped_storage().data_ptr() not in self._pinned:
            raise FaultError(f"{name} between host and device waits: it is not by pinned memory")
        if name == "copy_" and args[1].is_meta:
            behind = self._written.get(_start(args[1]), 0)
            if self.current is not self.default and self.current.waited < behind:
                raise FaultError("a copy does not wait for the work that makes what it copies")
            if args[0].dtype != args[1].dtype:
                raise FaultError("a copy converts")
            result = args[0]
        else:
            result = func(*args, **kwargs)
            self.launches.append(name)
            self._written[_start(result)] = len(self.launches)
        self.in_flight[host[0].untyped_storage().data_ptr()] = self.current
        return result


def pretend_cuda(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    """Let Link, its streams, events and pinned memory work on the device."""

    class DeviceStream(Stream):  # a class, as modules that are imported meanwhile expect
        def __init__(self, _: torch.device) -> None:
            super().__init__(device)

    class DeviceEvent(Event):
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            super().__init__(device)
            device.events.append(self)

    monkeypatch.setattr(device_module, "_pinned", device.pinned)
    monkeypatch.setattr(torch.cuda, "Stream", DeviceStream)
    monkeypatch.setattr(torch.cuda, "Event", DeviceEvent)
    monkeypatch.setattr(torch.cuda, "stream", device.on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: device.current)


def _on_host_only(factory: Any) -> Any:
    def checked(*args: Any, **kwargs: Any) -> Any:
        if str(kwargs.get("device")) == "meta":  # such copies are not seen by the dispatcher
            raise FaultError(f"{factory.__name__} on the device waits for it")
        return factory(*args, **kwargs)

    return checked


def _start(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_view(func: Any) -> bool:
    infos = [value.alias_info for value in func._schema.returns]
    return any(info is not None and not info.is_write for info in infos)
