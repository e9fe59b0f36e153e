"""The formats: each makes a file and opens it again with the program that users open it with."""

from __future__ import annotations

import copy
import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ninefold.api.parts import WithForward
from ninefold.checkpoint.loading import read_safetensors, safetensors
from ninefold.errors import ConfigError, located, memory_failure, not_installed, text_of
from ninefold.extensions.export.graph import Exported

LARGEST_ONNX = 2**31 - 2**20  # bytes of weights: a file of protobuf holds less than 2 GiB


class Format(Protocol):
    """packages: that it needs, for their versions."""

    packages: tuple[str, ...]

    def require(self) -> None:
        """Raise ConfigError unless what it needs is installed."""

    def made(self, source: Exported, about: dict[str, str]) -> bytes:
        """The file, in memory: libraries abort, or hide the reason, where a disk is full.

        about: short texts to store in it. Raises ConfigError.
        """

    def open(self, source: Exported, path: Path) -> Callable[..., Any]:
        """The function in the file: from a batch of `source.inputs`, one after the other, to the
        prediction.
        """


class SafeTensors:
    """The weights alone, under the names of the plain network."""

    packages: tuple[str, ...] = ("safetensors",)

    def require(self) -> None:
        safetensors("format", "safetensors")

    def made(self, source: Exported, about: dict[str, str]) -> bytes:
        copies = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in plain(source.model).state_dict().items()
        }
        # Those who load a file into Transformers need to be told that it is torch's.
        data: bytes = safetensors("format", "safetensors").save(copies, {"format": "pt", **about})
        return data

    def open(self, source: Exported, path: Path) -> Callable[..., Any]:
        found, own = read_safetensors(path, "export"), plain(source.model).state_dict()
        assert found.keys() == own.keys(), "tensors are missing in the file"
        assert all(torch.equal(found[name], own[name]) for name in own), "tensors differ in it"
        loaded: nn.Module = copy.deepcopy(source.expected)
        inner = loaded  # its names have the prefix of a wrapper where it takes or returns several
        while inner.state_dict().keys() != own.keys():
            inner = next(inner.children())
        inner.load_state_dict(found)
        return loaded


def plain(model: nn.Module) -> nn.Module:
    """The user's network, where `forward` of a comparison calls it."""
    return model.model if isinstance(model, WithForward) else model


class PT2:
    """A graph of torch.export, for PyTorch without the code of the network."""

    packages: tuple[str, ...] = ("torch",)

    def require(self) -> None:
        pass

    def made(self, source: Exported, about: dict[str, str]) -> bytes:
        file = io.BytesIO()
        with quiet():
            torch.export.save(program(source, "pt2"), file, extra_files=about)
        return file.getvalue()

    def open(self, source: Exported, path: Path) -> Callable[..., Any]:
        with quiet():
            module: nn.Module = torch.export.load(str(path)).module()
        return module


class ONNX:
    """A graph for ONNX Runtime and other engines."""

    packages: tuple[str, ...] = ("torch", "onnx", "onnxruntime", "onnxscript")

    def require(self) -> None:
        # onnxruntime would send what it does to Microsoft, and leave files in TMPDIR.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        for name in self.packages:
            try:
                __import__(name)
            except ImportError as error:
                raise not_installed("format", "onnx", name, "onnx") from error

    def made(self, source: Exported, about: dict[str, str]) -> bytes:
        size = sum(t.numel() * t.element_size() for t in source.graph.state_dict().values())
        if size > LARGEST_ONNX:
            raise ConfigError(
                "format",
                "onnx",
                f"the network has {size:,} bytes of weights",
                f"one file holds {LARGEST_ONNX:,}",
                "use format=pt2",
            )
        exported = program(source, "onnx")
        with quiet(), refusing("onnx"):
            found = torch.onnx.export(
                exported,
                input_names=source.names,
                output_names=list(source.outputs(source.graph(*source.example))),
                dynamic_shapes=shapes(source, "batch"),  # its name in the file
                verbose=False,
            )
            assert found is not None
            found.model.metadata_props.update(about)
            data: bytes = found.model_proto.SerializeToString()
        return data

    def open(self, source: Exported, path: Path) -> Callable[..., Any]:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )

        taken = {each.name for each in session.get_inputs()}  # without those that nothing uses

        def call(*inputs: Tensor) -> Any:
            given = zip(source.names, inputs, strict=True)
            found = session.run(None, {name: v.numpy() for name, v in given if name in taken})
            outputs = tuple(map(torch.from_numpy, found))
            return outputs if len(outputs) > 1 else outputs[0]

        return call


FORMATS: dict[str, Format] = {"safetensors": SafeTensors(), "onnx": ONNX(), "pt2": PT2()}


def program(source: Exported, name: str) -> Any:
    """The graph with a batch of any size, for the format `name`. Raises ConfigError."""
    batch = torch.export.Dim("batch")
    with quiet(), refusing(name), torch.no_grad():
        found = torch.export.export(
            source.graph, source.example, dynamic_shapes=shapes(source, batch)
        )
    for node in found.graph.nodes:  # paths of this machine
        node.meta.pop("stack_trace", None)
    return found


def shapes(source: Exported, batch: Any) -> Any:
    """The sizes that may differ from batch to batch, as torch's exporters take them: the first."""
    each = tuple({0: batch} for _ in source.example)
    kinds = {p.kind for p in inspect.signature(source.graph.forward).parameters.values()}
    return (each,) if inspect.Parameter.VAR_POSITIONAL in kinds else each


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """Turn what torch's exporters raise, of many types, into a ConfigError."""
    try:
        yield
    except Exception as error:
        if exhausted := memory_failure(error, "a network was being exported"):
            raise exhausted from error
        lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
        said = lines[0] if lines else type(error).__name__
        if any("specialized it to be a constant" in line for line in lines):
            said = "its code fixes the number of examples in a batch, and a file takes any number"
        raise ConfigError(
            "format",
            name,
            f"the network cannot be exported so; {located(error, said)}",
            "HYDRA_FULL_ERROR=1 shows more",
            "format=safetensors takes any network",
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's exporters from warning of what is theirs alone, logging and printing graphs."""
    before, unread = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(unread), redirect_stderr(unread):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
