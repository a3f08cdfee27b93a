"""Streams and events: the device's own, or one queue in order where it has none."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ditorch.redirect.cuda.in_order import Streams, host_event, queue_event
from ditorch.redirect.cuda.target import Target
from ditorch.redirect.patch import Patches


def names(target: Target) -> dict[str, Any]:
    members = _of_the_device(target) if has_streams(target) else _in_order(target)
    _tell_old_torch(members["Stream"], members["Event"])
    return {**members, **_contexts()}


def _tell_old_torch(stream: Any, event: Any) -> None:
    """torch 2.3 and 2.4 have abstract classes that torch.compile wants every stream and event to derive from."""
    bases = getattr(torch, "_streambase", None)
    for base, member in (("_StreamBase", stream), ("_EventBase", event)):
        register = getattr(getattr(bases, base, None), "register", None)
        if register is not None and isinstance(member, type):
            register(member)


def patch_handles(patches: Patches, target: Target) -> None:
    """`stream.cuda_stream` and `event.cuda_event`, by which programs hand them to other libraries; both of any kind."""
    if not has_streams(target):
        return  # ours, which have them
    own_handle, own_priority = target.own("_stream_handle"), target.own("_stream_priority")

    def cuda_stream(self: torch.Stream) -> int:
        handle = getattr(self, f"{target.type}_stream", None)  # as most vendors name it
        if handle is None and own_handle is None:
            raise AttributeError(
                f"a stream of {target.backend.name} ({target.backend.title}) has no handle to be had as cuda_stream"
            )
        return int(own_handle(self) if handle is None else handle)

    def priority(self: torch.Stream) -> int:
        return int(own_priority(self)) if own_priority else 0

    def cuda_event(self: Any) -> int:
        handle = getattr(self, f"{target.type}_event", None)
        return int(self.event_id if handle is None else handle)

    why = "programs hand it to other libraries"
    patches.assign(torch.Stream, "cuda_stream", property(cuda_stream), why)
    if not hasattr(target.own("Stream"), "priority"):
        patches.assign(torch.Stream, "priority", property(priority), "programs read back what they asked for")
    if not hasattr(torch, "Event"):  # before 2.4
        return
    patches.assign(torch.Event, "cuda_event", property(cuda_event), why)
    own_event_handle, own_event = target.own("_event_handle"), target.own("_event_from_handle")
    if own_event_handle and own_event:

        def ipc_handle(self: Any) -> bytes:
            return bytes(own_event_handle(self))

        def from_ipc_handle(cls: type, device: Any, handle: bytes) -> Any:
            return own_event(target.index(device), handle)

        why = "other processes wait for the event"
        patches.assign(torch.Event, "ipc_handle", ipc_handle, why)
        patches.assign(torch.Event, "from_ipc_handle", classmethod(from_ipc_handle), why)


def has_streams(target: Target) -> bool:
    return target.own("Stream") is not None


def _of_the_device(target: Target) -> dict[str, Any]:
    current = target.first("current_stream", "current_stream")
    choose = target.first("set_stream", "set_stream")
    default = target.own("default_stream")
    by_id = target.own("_set_stream_by_id")
    assert current is not None
    assert choose is not None

    def current_stream(device: Any = None) -> Any:
        return current(target.index(device))

    def default_stream(device: Any = None) -> Any:
        if default:
            return default(target.index(device))
        here = current(target.index(device))
        return torch.Stream(stream_id=0, device_index=here.device_index, device_type=here.device_type)

    def set_stream(stream: Any) -> None:
        if stream is not None:
            choose(stream)

    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        if by_id:
            by_id(stream_id=stream_id, device_index=device_index, device_type=device_type)
        else:
            choose(torch.Stream(stream_id=stream_id, device_index=device_index, device_type=device_type))

    return {
        "Stream": _stream_class(target, target.own("Stream")),
        "Event": _event_class(target.own("Event")) if target.own("Event") else host_event(),
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "_set_stream_by_id": _set_stream_by_id,
    }


def _stream_class(target: Target, base: Any) -> type:
    def new(cls: type, device: Any = None, priority: int = 0, **others: Any) -> Any:
        if device is None or (isinstance(device, int) and device < 0):
            return base.__new__(cls, priority=priority, **others)
        return base.__new__(cls, device=target.device(device), priority=priority, **others)

    def priority_range() -> tuple[int, int]:
        return (0, 0)

    members: dict[str, Any] = {"__new__": new, "__doc__": base.__doc__}
    if not hasattr(base, "priority_range"):
        members["priority_range"] = staticmethod(priority_range)
    return _subclass("Stream", base, torch.Stream, members)


def _event_class(base: Any) -> type:
    known = inspect.signature(base).parameters

    def new(
        cls: type,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> Any:
        # how to wait and to share, which not every device's events let choose
        others = {"blocking": blocking, "interprocess": interprocess, "external": external}
        wanted = {name: value for name, value in others.items() if value and name in known}
        return base.__new__(cls, enable_timing=enable_timing, **wanted)

    return _subclass("Event", base, getattr(torch, "Event", base), {"__new__": new, "__doc__": base.__doc__})


def _subclass(name: str, base: Any, generic: type, members: dict[str, Any]) -> type:
    """A class for making the device's objects, which takes for its own all that the device makes itself."""

    def is_instance(cls: type, it: object) -> bool:
        return isinstance(it, (base, generic)) if cls is made else type.__instancecheck__(cls, it)

    kind = type(f"{name}Type", (type(base),), {"__instancecheck__": is_instance})
    made: type = kind(name, (base,), members)
    return made


def _in_order(target: Target) -> dict[str, Any]:
    event = queue_event(target.own("Event")) if target.own("Event") else host_event()
    streams = Streams(target, event)

    def current_stream(device: Any = None) -> Any:
        return streams.current(target.index(device))

    def default_stream(device: Any = None) -> Any:
        return streams.default(target.index(device))

    def set_stream(stream: Any) -> None:
        if stream is not None:
            streams.choose(stream)

    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        streams.choose(streams.made(device_index, stream_id))

    return {
        "Stream": streams.kind,
        "Event": event,
        "current_stream": current_stream,
        "default_stream": default_stream,
        "set_stream": set_stream,
        "_set_stream_by_id": _set_stream_by_id,
    }


def _contexts() -> dict[str, Any]:
    class StreamContext:
        """Makes another stream the current one; None changes nothing."""

        def __init__(self, stream: Any) -> None:
            self.stream = stream
            self._before: list[tuple[Any, int]] = []

        def __enter__(self) -> None:
            if self.stream is not None:
                device = torch.cuda.current_device()
                self._before.append((torch.cuda.current_stream(self.stream.device), device))
                torch.cuda.set_stream(self.stream)

        def __exit__(self, *_: object) -> None:
            if self._before:
                stream, device = self._before.pop()
                torch.cuda.set_stream(stream)
                torch.cuda.set_device(device)  # choosing a stream chooses its device, too

    def stream(stream: Any) -> StreamContext:
        return StreamContext(stream)

    return {"StreamContext": StreamContext, "stream": stream}
