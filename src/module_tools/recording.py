"""Writes what every module of a model is given and gives, forward and backward.

    accuracy_data/rank0/expected/
        modules_full_name.txt      every layer
        modules_full_name_run.txt  those that ran, in that order
        forward/GPT.blocks.0.pt    {"layer_name", "input", "kwargs", "output"}
        backward/GPT.blocks.0.pt   {"layer_name", "grad_input", "grad_output", "grad_parameters"}

Of layers that were given something else, `arrived` is what they would have been given.

`real` stands in the place of `expected` in the second run. torch.load(weights_only=True) reads each file. The graph of
autograd stays as it is: gradients are heard of at a layer's edge, as the tools do it for an op.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Callable, NamedTuple

from torch import Tensor
from torch.nn import Module

from module_tools.fixed_inputs import FixedInputs
from op_tools.core import dynamo
from op_tools.core.gradients import Edges, edges_in_python
from op_tools.core.modes import with_modes_aside
from op_tools.device.host_memory import HostMemory
from op_tools.errors import SettingError
from op_tools.output import messages
from op_tools.output.process import this_rank
from op_tools.storage import encoding, files
from op_tools.storage.archive import Archive
from op_tools.storage.snapshot import take
from op_tools.values import trees

DATA = "accuracy_data"
EXPECTED, REAL = "expected", "real"
FORWARD, BACKWARD = "forward", "backward"
ALL_LAYERS, RUN_LAYERS = "modules_full_name.txt", "modules_full_name_run.txt"


class Recorder:
    """Records calls of layers, and their backward passes, into a folder. `fixed`: what each is given instead."""

    def __init__(self, folder: Path, fixed: FixedInputs | None) -> None:
        self.folder = folder
        self._fixed = fixed
        self._memory = HostMemory(0, lambda: False)
        self._hooks: list[Any] = []
        self._entered: dict[str, list[_Entered | None]] = {}  # calls that are running, by layer
        self._arrived: dict[str, dict[int, Any]] = {}  # gradients that were replaced, by layer
        self._ran: dict[str, None] = {}
        self._flowed: set[str] = set()  # whose backward pass is heard of

    def label(self, name: str) -> str | None:
        """Under which name this call of a layer is kept; a second call of that name is not. None: not at all."""
        return name

    def hook(self, layers: Iterable[tuple[str, Module]]) -> None:
        """Begins to record these."""
        for name, module in layers:
            before, after = partial(self._before, name), partial(self._after, name)
            self._hooks.append(module.register_forward_pre_hook(_unseen(before), with_kwargs=True))
            self._hooks.append(module.register_forward_hook(_unseen(after), with_kwargs=True))

    def remove_hook(self) -> None:
        """Ends recording."""
        while self._hooks:
            self._hooks.pop().remove()

    def _before(self, name: str, module: Module, args: Any, kwargs: Any) -> Any:
        given, label = None, self.label(name)
        running = self._entered.setdefault(name, [])
        if label is None:
            running.append(None)
            return None
        arrived = None
        if self._fixed is not None:
            if self._fixed.on_both_sides and label not in self._ran:
                arrived = self._copy((args, kwargs))
            given = args, kwargs = self._fixed.instead_of(label, args, kwargs)
        if label in self._flowed:
            running.append(_Entered(label, None, None, 0, None))
            return given
        parameters = [parameter for _, parameter in module.named_parameters(recurse=False)]
        watched = [*trees.tensors((args, kwargs)), *parameters]
        edges = edges_in_python(tuple(watched), {})
        # an op of the layer may write into what it is given
        kept = None if label in self._ran else self._copy((args, kwargs))
        running.append(_Entered(label, kept, arrived, len(watched) - len(parameters), edges))
        return given

    def _after(self, name: str, module: Module, args: Any, kwargs: Any, output: Any) -> Any:
        running = self._entered.get(name)
        entered = running.pop() if running else None
        if entered is None:
            return None
        label = entered.label
        if self._fixed is not None:
            self._fixed.replace_gradients(label, output, partial(self._gradient_arrived, label))
        if label not in self._ran and entered.given is not None:
            self._ran[label] = None
            input, named = entered.given
            arrived = {} if entered.arrived is None else {"arrived": entered.arrived}
            self._save(FORWARD, label, input=input, kwargs=named, output=self._copy(output), **arrived)
            self._write(RUN_LAYERS, self._ran)
        if label not in self._flowed and entered.edges is not None:
            parameters = [parameter for parameter, _ in module.named_parameters(recurse=False)]
            receive = partial(self._received, label, entered.inputs, parameters)
            if entered.edges.watch(output, _Listener(receive), False, ()):
                self._flowed.add(label)
        return None if self._fixed is None else self._fixed.output_instead_of(label, output)

    def _gradient_arrived(self, label: str, number: int, gradient: Tensor) -> None:
        if self._fixed is not None and self._fixed.on_both_sides:
            self._arrived.setdefault(label, {}).setdefault(number, self._copy(gradient))

    def _received(
        self, name: str, inputs: int, parameters: list[str], into: list[Tensor | None], given: list[Tensor | None]
    ) -> None:
        grad_parameters = dict(zip(parameters, into[inputs:]))
        parts = self._copy((into[:inputs], given, grad_parameters))
        arrived = self._arrived.pop(name, None)
        more = {} if arrived is None else {"arrived": [arrived.get(number) for number in range(len(given))]}
        self._save(BACKWARD, name, grad_input=parts[0], grad_output=parts[1], grad_parameters=parts[2], **more)

    def _copy(self, value: Any) -> Any:
        """As it is now, on the host."""
        taken = with_modes_aside(take, value, self._memory)
        taken.wait()
        return taken.value

    def _save(self, direction: str, name: str, **parts: Any) -> None:
        self._put(f"{direction}/{name}.pt", Archive({"layer_name": name, **encoding.for_disk(parts)}).buffers)

    def _write(self, name: str, lines: Any) -> None:
        self._put(name, ["".join(f"{line}\n" for line in lines).encode()])

    def _put(self, name: str, buffers: Any) -> None:
        try:
            files.put(str(self.folder / name), buffers)
        except OSError as error:
            messages.complain_once(
                "module_tools",
                text=f"CompLayerAcc cannot write {error.filename} ({error.strerror}): the layers that it could not "
                "write are not compared, training goes on",
            )


class CompLayerAcc(Recorder):
    """Records the first call of every layer of a model, and its backward pass.

    model              the model; call insert_hook() before its first step
    is_dump_benchmark  True in the run that is right, False in the one to be judged
    is_fixed_input     give each layer what it was given in the benchmark, so that errors do not add up from layer to
                       layer; the benchmark has to be there
    data_path          the folder, for both runs
    """

    def __init__(
        self,
        model: Module,
        is_dump_benchmark: bool,
        is_fixed_input: bool = False,
        data_path: str | os.PathLike[str] = DATA,
    ) -> None:
        if is_fixed_input and is_dump_benchmark:
            raise SettingError("is_fixed_input=True is for the second run: record the benchmark without it first")
        ranks_own = Path(data_path, f"rank{this_rank()}")
        if is_fixed_input and not (ranks_own / EXPECTED).is_dir():
            raise SettingError(
                f"is_fixed_input=True needs a benchmark, and there is none in {ranks_own / EXPECTED}: run the model "
                "once with is_dump_benchmark=True, with the same data_path"
            )
        fixed = FixedInputs(ranks_own / EXPECTED) if is_fixed_input else None
        super().__init__(ranks_own / (EXPECTED if is_dump_benchmark else REAL), fixed)
        self.model = model

    def walk_model(self) -> list[str]:
        """The names of all layers, from the outside to the inside."""
        return [name for name, _ in layers(self.model, type(self.model).__name__)]

    def insert_hook(self) -> Module:
        """Begins to record; returns the model. A second call changes nothing."""
        if not self._hooks:
            for left in (FORWARD, BACKWARD):  # by an earlier run
                shutil.rmtree(self.folder / left, ignore_errors=True)
            self._write(ALL_LAYERS, self.walk_model())
            self.hook(layers(self.model, type(self.model).__name__))
        return self.model


class _Entered(NamedTuple):
    """A call of a layer that is running."""

    label: str
    given: Any  # copies of its arguments, where they are to be kept
    arrived: Any  # the same before they were replaced
    inputs: int  # tensors among them
    edges: Edges | None


class _Listener:
    """Hears of a layer's first backward pass."""

    def __init__(self, receive: Callable[[list[Tensor | None], list[Tensor | None]], None]) -> None:
        self._receive: Callable[[list[Tensor | None], list[Tensor | None]], None] | None = receive

    def begins(self) -> None:
        """Of a node; this one has no clock."""

    def ends(self) -> None:
        """Of a node."""

    def received(self, inputs: list[Tensor | None], outputs: list[Tensor | None]) -> None:
        if self._receive is not None:
            receive, self._receive = self._receive, None
            receive(inputs, outputs)


def layers(module: Module, name: str) -> Iterator[tuple[str, Module]]:
    """A module that stands at two places is found at both, as it was written."""
    yield name, module
    for child_name, child in module.named_children():
        yield from layers(child, f"{name}.{child_name}")


def _unseen(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A failure of ours never ends a training run; and torch.compile leaves layers out that it compiles."""

    @dynamo.hidden
    def safe(*arguments: Any) -> Any:
        if dynamo.is_tracing():
            return None
        try:
            return hook(*arguments)
        except Exception as error:  # noqa: BLE001  whatever it is, training goes on
            layer = type(arguments[0]).__name__
            text = f"CompLayerAcc could not record a layer ({layer}): {messages.in_short(error)}; training goes on"
            messages.complain_once("module_tools", layer, text=text)
            return None

    return safe
