"""What the launcher sees to on this host before a job: the data, its cache and initial weights."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError

from ninefold.checkpoint import manifest
from ninefold.config import fingerprint, untrusted
from ninefold.config.configuration import noting_secrets
from ninefold.errors import (
    ConfigError,
    construction_error,
    error_of_exit,
    memory_failure,
    require_package,
)
from ninefold.process import replaced

if TYPE_CHECKING:  # it imports NumPy
    from ninefold.dataset import Dataset

# While NumPy is imported: OpenBLAS, which is not used here, allocates memory for each thread, and
# ends the process if that fails.
ONE_BLAS_THREAD = ("OPENBLAS_NUM_THREADS", "1")
Files = dict[str, str]  # of a cache: the path of each file by name

# Of the datasets that this process has checked, by configuration, what the data said and the cache:
# in a study many runs have the same one, and a class of the user's may take long to build. Sources
# that changed since are not noticed: all runs of a study train on the same examples.
_checked: dict[str, dict[str, Any]] = {}
_caches: dict[str, Files] = {}


def prepare(
    dataset: Mapping[str, Any],
    option: str | None,
    asking: str | None = None,
    counts: bool = False,
) -> tuple[Dataset, Files | None, dict[str, Any]]:
    """Return the dataset with this configuration, its cache, and what the data says of keys that
    are null: `shape`, and `classes` if they are asked for.

    The cache is None unless this command has made it before. Without one the data is checked, and
    downloaded if asked to, once for all runs of a command with this configuration.

    option: of the group, for the error. asking: the key that needs the number of classes, if any.
    counts: whether to say it, if the data does, though no key needs it. Raises Failure.
    """
    with _users_code():
        from ninefold.dataset import cache_folder  # late, because it imports NumPy

        try:
            node = _resolved(dataset)
            built, key = _built(node), _key(node)
            files = _caches.get(key)
            if files is not None and cache_folder.damage(Path(files[cache_folder.META]).parent):
                files = None
            if key not in _checked:
                found: dict[str, Any] = {}
                if node.get("shape", 0) is None and (shape := built.item_shape()) is not None:
                    found["shape"] = plain(shape)
                elif node.get("shape", 0) is None:
                    wrong = f"dataset={option} cannot say it"
                    do = "set dataset.shape"
                    raise ConfigError("dataset.shape", "null", wrong, "mapped can", do)
                if files is None:
                    built.prepare()
                _checked[key] = found
            known = _checked[key]
            open_ = (asking or counts) and node.get("classes", 0) is None
            if open_ and "classes" not in known:
                if (count := built.count_classes()) is not None:
                    known["classes"] = count
                elif asking:
                    wrong = f"dataset={option} cannot count them, and {asking} asks for them"
                    allowed = "folder, hf and classes with `classes` or `targets` can"
                    do = "set dataset.classes"
                    raise ConfigError("dataset.classes", "null", wrong, allowed, do)
        except HydraException as error:
            if exhausted := memory_failure(error, "the dataset was being imported"):
                raise exhausted from error
            raise construction_error("dataset", option, error, "dataset") from error
        said = {name: each for name, each in known.items() if open_ or name != "classes"}
        return built, files, said


def plain(shape: Any) -> Any:
    """The shape of an item as it is written to YAML: lists and dicts."""
    if isinstance(shape, dict):
        return {key: plain(value) for key, value in shape.items()}
    return list(map(plain, shape)) if isinstance(shape, list | tuple) else int(shape)


def fill_cache(
    built: Dataset,
    dataset: Mapping[str, Any],
    threads: int,
    asked: Mapping[str, Any] | None = None,
) -> Files | None:
    """Decode the examples of a dataset, if its configuration says so; returns the cache.

    built: the dataset, threads: that decode. asked: the configuration before its classes
    were counted, by which later runs of this command find the cache. Raises Failure.
    """
    with _users_code():
        from ninefold.dataset import cache

        files = cache.make(built, _resolved(dataset), threads)
        if files is not None:
            _caches[_key(_resolved(dataset if asked is None else asked))] = files
        return files


def fill_cache_of(text: str) -> Files | None:
    """The same for the frozen job `text`, on another host than its launcher's. Raises Failure."""
    with _users_code():
        job = OmegaConf.create(text)
        built = _built(_resolved(job.dataset))
    return fill_cache(built, job.dataset, job.threads)


def facts_of(text: str, check: bool) -> dict[str, str]:
    """Hashes of what the frozen job `text` reads on this host: the user's modules, and its files'
    names and sizes.

    Of an evaluation's references some lead to its checkpoint, which is not read here: those to the
    environment are followed in any job.

    check: check the data first, and download it if the job says so. Raises Failure.
    """
    job = OmegaConf.create(text)
    targets = untrusted.targets_in(OmegaConf.to_container(job))
    known = OmegaConf.create([*filter(untrusted.only_environment, targets)])
    names = OmegaConf.to_container(known, resolve=True)
    assert isinstance(names, list)
    modules = fingerprint.code(names)
    dataset = OmegaConf.select(job, "dataset")
    if dataset is None or refers_elsewhere(dataset):
        return {"modules": modules}
    with _users_code():
        node = _resolved(dataset)
    if check:
        built, _, _ = prepare(node, job.choices.dataset)
    else:
        built = _built(node)
    digest, root = hashlib.sha256(), node.get("root") or "/"
    for split in built.splits:
        for path in built.sources(split):
            name = os.path.relpath(path, root)  # which each host may have in another place
            digest.update(f"{split} {name} {os.stat(path).st_size}\n".encode())
    return {"data": digest.hexdigest(), "modules": modules}


def training_examples(dataset: Mapping[str, Any]) -> int:
    """The number of training examples, without those held out for validation. Raises DataError."""
    with _users_code():
        from ninefold.dataset import val_count

        built = _built(dataset)
        count = len(built.load("train"))
    return count - val_count(built, count)


def _built(node: Mapping[str, Any]) -> Dataset:
    """The dataset that a configuration without references describes. Raises ConfigError."""
    from ninefold.dataset import as_dataset  # late, because it imports NumPy

    return as_dataset(instantiate({**node}, _convert_="all"))


def prepare_weights(init: Any, net: Mapping[str, Any]) -> None:
    """See that the weights that a new run begins with are on this host; fetch pretrained ones.

    init: as typed. net: `model.net`. Raises Failure.
    """
    asked = untrusted.pretrained(net)
    if init is not None:
        if asked is not None:
            wrong = f"model.net.{asked[0]}={asked[1]} names weights too"
            allowed = "one of the two is allowed"
            raise ConfigError("init", init, wrong, allowed, "leave one of them out")
        file = manifest.required("init", init)
        if file.suffix == ".safetensors":
            require_package("init", init, "safetensors", "timm")
    module = untrusted.fetching(str(net["_target_"]))
    if asked is None or module is None:
        return
    fetch = getattr(import_module(module), "fetch", None)
    if fetch is None:
        (key, value), wrong = asked, "each process would download it"
        allowed = "model=torchvision and model=timm fetch it once, before the run"
        do = f"use one of them, or model.net.{key}=null with init=FILE"
        raise ConfigError(f"model.net.{key}", value, wrong, allowed, do)
    fetch(**{name: each for name, each in net.items() if name != "_target_"})


def refers_elsewhere(dataset: Mapping[str, Any]) -> bool:
    """Whether a configuration refers to keys outside of it, such as the seed."""
    with noting_secrets():
        try:
            _resolved(dataset)
        except InterpolationKeyError:
            return True
    return False


def _key(node: Mapping[str, Any]) -> str:
    return f"{os.getcwd()} {node}"  # its paths may be relative


def _resolved(dataset: Mapping[Any, Any]) -> dict[str, Any]:
    """A configuration without references: an evaluation's is resolved only here."""
    whole = OmegaConf.create({"dataset": {**dataset}})  # what it refers to begins with `dataset.`
    tree = OmegaConf.to_container(whole.dataset, resolve=True)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


@contextmanager
def _users_code() -> Iterator[None]:
    """Build a dataset, which may be a class of the user's, in the block: it must not end the
    process, as sys.exit does. Raises ConfigError if it tries.
    """
    with noting_secrets(), replaced(*ONE_BLAS_THREAD):
        try:
            yield
        except BaseException as error:
            if (failure := error_of_exit(error)) is None:
                raise
            raise failure from error
