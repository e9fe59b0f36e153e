"""An evaluation in a worker: from a checkpoint to evaluation.json; restoring its model."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn

from ninefold.checkpoint.store import read
from ninefold.checkpoint.weights import AVERAGE, LoadReport, chosen, load_weights, mismatch, tensors
from ninefold.config import untrusted
from ninefold.config.spec import RunSpec
from ninefold.dataset.cache import reader
from ninefold.dataset.images import unlike_classes
from ninefold.engine import evaluation
from ninefold.engine.amp import verify
from ninefold.engine.parallel import Parallel, RankContext, device_names
from ninefold.engine.task import Objective, Task, buffers, scoring
from ninefold.errors import CheckpointError, ConfigError, NumericsError, one_line
from ninefold.files import write_json
from ninefold.numbers import counted, plural
from ninefold.places import CONF
from ninefold.secrets import redact, redacted
from ninefold.train import build
from ninefold.train.initial import copy_into
from ninefold.train.kernels import memory_format, require_one_kind
from ninefold.train.run import environment_of
from ninefold.types import spelled
from ninefold.words import key_of

ASSUMED = {"amp": "fp32", "task": "classification"}  # of a file without a configuration
# Of a dataset: what weights are trained for.
AS_TRAINED = ("classes", "shape", "mean", "std", "spacing", "window", "exif", "ignore")
OF_TASKS = ("shape", "spacing", "ignore")  # of a dataset, which tasks refer to


def evaluate(spec: RunSpec) -> None:
    """Evaluate a checkpoint; rank 0 writes evaluation.json.

    Raises Failure.
    """
    wanted = OmegaConf.create(spec.job_yaml)
    assert isinstance(wanted, DictConfig)
    parallel: Parallel = build.make(wanted.parallel, "parallel")
    with parallel.join() as context:
        found = restored(wanted, parallel, context, {*map(key_of, spec.overrides)})
        job = found.job
        _, amp = build.begin(job)
        torch.set_num_threads(context.share_of(job.threads))
        amp = amp.on(context.device)
        require_one_kind(amp, context)
        verify(amp, amp.grad_scaler(context.device), context.device)
        if context.rank == 0:
            found.tell()
        found.require_complete(wanted.load.partial)
        found.require_finite()
        dataset = build.built_dataset(job, context, spec.cache, "test")
        layout = memory_format(
            build.wanted_format(job), dataset.shape, amp, context.device, parallel.shards
        )
        examples = reader(dataset, spec.cache)("test")
        prepare = build.preparation(job, dataset, False, layout)
        found.model.to(memory_format=getattr(torch, layout))
        names = build.class_names(job, examples)
        found.require_classes(names)
        task = found.built_task()
        trial = build.trial_of(job, found.model, task, context)
        differentiates = trial.evaluation(examples, prepare, names)
        del trial  # its copies are as large as the network
        amp.cast(found.model)
        objective = Objective(amp.wrap(build.predicting(job, found.model)), task)
        size = job.batch_size
        how = build.loader_plan(job, dataset, [examples], size, parallel, context)
        result = evaluation.evaluate(
            parallel.wrap(objective, context),
            how.source(examples, context.device),
            task=task,
            batch_size=size,
            prepare=prepare,
            parallel=parallel,
            context=context,
            names=names,
            gradients=differentiates,
        )
        if not math.isfinite(result.loss):
            allowed = f"the weights in {found.path} are, computed in {amp.dtype}"
            do = "choose a wider amp.dtype, or see what task.loss does with the examples"
            raise NumericsError("test_loss", result.loss, "not finite", allowed, do)
        notes = found.notes + parallel.notes(context) + amp.notes(context.device)
        if context.rank != 0:
            return
        scores, score = result.scores, scoring(task)
        content = {
            "score": result.score,
            "loss": result.loss,
            "count": result.count,
            "score_name": score.name,
            "score_unit": score.unit,
            "score_better": score.better,
            "scores": scores.figures,
            "figures": scores.kinds,
            "per_class": dict(scores.each),
            "confusion": None if scores.table is None else scores.table.tolist(),
            "checkpoint": str(found.path),
            "weights": found.weights,
            "load": str(found.report),
            "config": OmegaConf.to_container(job),
            "dtype": amp.dtype,
            "memory_format": layout,
            "processes": context.world_size,
            "hosts": max(1, len(spec.hosts)),
            "loader_workers": how.workers,
            "resident_bytes": how.resident,
            "devices": device_names(context),
            "notes": notes,
            "environment": environment_of(spec, context),
        }
        write_json(spec.folder / "evaluation.json", redacted(content))
        for note in notes:
            print(f"note: {note}")
        shown, count = score.text(scores.score), counted(result.count, "example")
        loss = "" if score.name == "loss" else f"  loss {result.loss:.4f}"
        print(f"{score.name} {shown}{loss}  {count}")
        for figures in (scores.figures, scores.each):
            if figures is scores.each and figures:
                print(f"{scores.each_name} of each:")
            for name, value in figures.items():
                without = f"no {scores.counted}" if figures is scores.each else "undefined"
                text = without if value is None else f"{value:.4f}"
                print(f"  {name:<12} {text}")
        said = f"{score.name} {shown} of {count}"
        print(f"evaluated: {said}; evaluation.json is in {spec.folder}", flush=True)


@dataclass(frozen=True)
class Restored:
    """A plain model with the weights of a checkpoint, on the CPU.

    path: the checkpoint. job: the part of its frozen job that is used, with the command's groups.
    weights: average or raw, whichever was loaded. report: how the file's tensors fit the model.
    task: the buffers of the task that it was trained by; empty for another one.
    names: of the classes of the training; empty if they are not known, or only numbers count.
    """

    model: nn.Module
    job: DictConfig
    path: Path
    weights: str
    report: LoadReport
    task: Mapping[str, Tensor]
    names: Sequence[str] = ()

    def built_task(self) -> Task:
        """The job's task, with the buffers of the run. Raises ConfigError, CheckpointError."""
        made = build.built_task(self.job)
        for name, own in buffers(made).items():
            if (value := self.task.get(name)) is None:
                continue
            if (found := mismatch(value, own)) is not None:
                wrong = f"its {name} does not fit task={self.job.choices.task}"
                do = "use the code that it was trained by"
                raise CheckpointError("ckpt", self.path, wrong, f"it is {found}", do)
            own.copy_(value)
        return made

    @property
    def notes(self) -> list[str]:
        """Sentences about the weights that were loaded."""
        if self.weights != AVERAGE:
            return []
        return [
            "The weights are the moving average (ema) in the checkpoint; "
            "weights=raw takes the others."
        ]

    def tell(self) -> None:
        """Print which checkpoint was read and how it fits, on one line without secrets."""
        print(redact(one_line(f"{self.path}: {self.report}")), flush=True)

    def require_complete(self, partial: bool | None) -> None:
        """Raise CheckpointError unless all of the model was loaded, or `partial` is allowed."""
        if not self.report.complete and not partial:
            wrong = f"it does not fit model={build.model_name(self.job)}"
            do = other_model(partial)
            raise CheckpointError("ckpt", self.path, wrong, f"{self.report!s}", do)

    def require_classes(self, names: Sequence[str]) -> None:
        """Raise CheckpointError if the dataset's classes have other names, or another order."""
        found = {"checkpoint": self.names, "dataset": names}
        if all(found.values()) and (wrong := unlike_classes(found)):
            do = "match them, or to ignore names add dataset=OPTION dataset.classes=N"
            raise CheckpointError("ckpt", self.path, *wrong, do)

    def require_finite(self) -> None:
        """Raise NumericsError unless all weights are finite; -inf in a buffer is a mask's."""
        parameters = dict(self.model.named_parameters())
        for name, tensor in self.model.state_dict().items():
            if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
                continue
            bad = ~tensor.isfinite()
            if name not in parameters:
                bad &= tensor != -math.inf
            if count := int(bad.sum()):
                of = f"{count:,} of its {tensor.numel():,} values"
                allowed = f"{of} {plural(count, 'is', 'are')} NaN or infinite"
                do = "choose an earlier checkpoint, or train again with a lower learning rate"
                raise NumericsError("ckpt", self.path, f"{name} in it is not finite", allowed, do)


def restored(
    wanted: DictConfig,
    parallel: Parallel | None = None,
    context: RankContext | None = None,
    named: Collection[str] = (),
) -> Restored:
    """Build the model of the checkpoint that `wanted` names, and load its weights.

    wanted: the frozen job of a command that takes a checkpoint; `checkpoint_file` names it,
    `weights` (average, raw or null: the average if there is one) chooses the weights.
    parallel, context: of an evaluation in several processes, which all must call it: rank 0 reads
    the file, which other hosts need not have. named: keys that its command names.
    Raises CheckpointError, ConfigError.
    """
    path = Path(wanted.checkpoint_file)
    if parallel is None or context is None or context.world_size == 1:
        return _read(wanted, path, named)
    if context.rank == 0:
        found = _read(wanted, path, named)
        text = OmegaConf.to_yaml(found.job)
        state = dict(found.model.state_dict()), dict(found.task)
        parallel.broadcast((found.weights, text, *state, found.names))
        return found
    which, text, weights, task, names = parallel.broadcast(None)
    job = OmegaConf.create(text)
    assert isinstance(job, DictConfig)
    model = build.network(job)
    copy_into(model.state_dict(), weights)
    return Restored(model, job, path, which, LoadReport([], [], [], []), task, names)


def of_checkpoint(path: Path, trust: bool) -> Restored:
    """The network of a checkpoint and its job, where no command adds to them. Raises Failure.

    It is on the CPU and in float32, whatever the caller's defaults are.
    """
    keys = ("weights", "batch_size", "threads", "device", "loader", "launch")
    given = {"checkpoint_file": str(path), "trust": trust, "load": {"partial": None}}
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"):
            found = restored(OmegaConf.create({**given, **dict.fromkeys(keys)}))
    finally:
        torch.set_default_dtype(dtype)
    found.require_complete(partial=None)
    found.require_finite()
    return found


def _read(wanted: DictConfig, path: Path, named: Collection[str]) -> Restored:
    content = read(path)
    found, which = chosen(content, wanted.weights)
    stored = stored_job(content, path, wanted)
    job = overlay(stored, wanted, path)
    own = "format" in content and job.task == stored.get("task")
    trained = follow_training(job.dataset, content.get("config"), named)
    for key in OF_TASKS if wanted.get("task") is None else ():
        followed = key in job.task and job.task[key] == trained.get(key)
        if followed and f"dataset.{key}" in named:
            job.task[key] = job.dataset[key]
    if not wanted.load.partial:
        require_room(job, found, path, other_model(wanted.load.partial))
    model = build.network(job)
    saved = content.get("task") if own else None
    task = tensors(saved) if isinstance(saved, Mapping) else {}
    meant = {"dataset.classes", "dataset.class_names"} & {*named}
    saved = None if meant else content.get("names")
    names = [*map(str, saved)] if isinstance(saved, list) else []
    return Restored(model, job, path, which, load_weights(model, found), task, names)


def overlay(job: DictConfig, wanted: DictConfig, path: Path) -> DictConfig:
    """The `job` stored in the checkpoint at `path`, with the groups that the evaluation chose.

    What these refer to is the command's, or else the stored job's, such as its seed.
    A bare state_dict has no job: fp32 and classification are assumed then.
    Raises ConfigError if neither has a model or a dataset.
    """
    others = job.get("others") or {}
    seed = others.get("seed")  # a network may keep more of it than its weights
    seed = seed if isinstance(seed, int) else 0
    merged = OmegaConf.create({"choices": dict(job.get("choices") or {}), "seed": seed})
    for group in untrusted.EVALUATED:
        merged[group] = job.get(group)
        if wanted.get(group) is not None:
            merged[group] = wanted[group]
            merged.choices[group] = wanted.choices[group]
        elif merged[group] is None and group in ASSUMED:
            merged[group] = option_of(group, ASSUMED[group])
            merged.choices[group] = ASSUMED[group]
        if merged[group] is None:
            wrong = f"{path} does not say which {group} it is for"
            found = f"found {sorted(set(job) & {*untrusted.EVALUATED}) or 'no configuration in it'}"
            in_python = wanted.load.partial is None
            do = "load it into a network of yours" if in_python else f"name one: {group}=..."
            raise ConfigError(group, "null", wrong, found, do)
    for key in ("batch_size", "threads", "device", "loader", "launch"):
        merged[key] = wanted[key]
    known = OmegaConf.create({**merged, **others})
    for group in untrusted.EVALUATED:
        if wanted.get(group) is not None:
            merged[group] = without_references(known, group)
    return merged


def option_of(group: str, name: str) -> Any:
    """An option of conf/, with what it extends."""
    own: Any = OmegaConf.load(CONF / group / f"{name}.yaml")
    return OmegaConf.merge(*(option_of(group, base) for base in own.pop("defaults", ())), own)


def without_references(known: DictConfig, group: str) -> Any:
    """A group as plain data, its references resolved. Raises ConfigError if one leads nowhere."""
    try:
        return OmegaConf.to_container(known[group], resolve=True)
    except OmegaConfBaseException as error:
        wrong = one_line(str(error.msg or error))
        allowed = "neither the command nor the checkpoint has it"
        do = "write the value in its place"
        raise ConfigError(str(error.full_key or group), "?", wrong, allowed, do) from error


def stored_job(content: Mapping[str, Any], path: Path, wanted: DictConfig) -> DictConfig:
    """The part of the job in a checkpoint that is used, empty if there is none.

    The file may come from anyone. Raises CheckpointError if it names targets that conf/ does not,
    unless the command trusts it.
    """
    text = content.get("config")
    if not isinstance(text, str):
        return OmegaConf.create({})
    named = {group: wanted.get(group) for group in untrusted.EVALUATED}
    in_python = wanted.load.partial is None
    job = untrusted.for_evaluation(text, path, named, wanted.trust, in_python)
    return OmegaConf.create(job)


def follow_training(dataset: DictConfig, text: object, named: Collection[str]) -> dict[str, Any]:
    """Take the number of classes from the checkpoint, where nothing else says it; return the keys
    of the training's dataset, as far as they are known.

    dataset: that of an evaluation. text: the configuration in the checkpoint, as YAML. named: keys
    that the command names. Raises ConfigError if a key of AS_TRAINED is another than in the
    training, and the command does not name it.
    """
    then = untrusted.parse(text).get("dataset") if isinstance(text, str) else None
    now = OmegaConf.to_container(dataset)
    if not isinstance(then, dict) or not isinstance(now, dict):
        return {}
    was, there = then.get("classes", 0), now.get("classes", 0)
    follows = was is None or (there is None and type(was) is int and was > 0)
    if follows and "classes" in now and "dataset.classes" not in named:
        dataset.classes = now["classes"] = was  # None: its targets are no classes
    unlike = {
        f"dataset.{key}": (now[key], then[key])
        for key in AS_TRAINED
        if key in then and now.get(key, then[key]) != then[key] and f"dataset.{key}" not in named
    }
    if unlike:
        name, (given, trained) = next(iter(unlike.items()))
        words = (f"{key}={spelled(value)}".replace(" ", "") for key, (_, value) in unlike.items())
        wrong, allowed = "the weights were trained with another value", f"it was {spelled(trained)}"
        raise ConfigError(name, spelled(given), wrong, allowed, f"add {' '.join(words)}")
    return then


def other_model(partial: bool | None) -> str:
    """What to do where weights do not fit. partial: load.partial; None where no command has it."""
    if partial is None:
        return "choose another checkpoint, or use the code that it was trained by"
    return "choose the right model, or load.partial=true"


def require_room(job: DictConfig, found: Mapping[str, Tensor], path: Path, do: str) -> None:
    """Refuse to build a model that is far larger than the tensors to load into it.

    do: what the error says to do. Raises CheckpointError, ConfigError.
    """
    # By storage: a file of a few bytes can hold a tensor that claims to be huge.
    plain = [t for t in found.values() if t.layout == torch.strided]  # others never fit
    storages = {s.data_ptr(): s.nbytes() for s in (t.untyped_storage() for t in plain)}
    held, wanted = sum(storages.values()), build.weight_bytes(job)
    if wanted is not None and wanted > 2 * held + 2**30:
        wrong = f"it does not fit model={build.model_name(job)}"
        allowed = f"the model takes {wanted:,} bytes, the file holds {held:,}"
        raise CheckpointError("ckpt", path, wrong, allowed, do)
