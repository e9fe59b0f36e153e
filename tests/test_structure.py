"""The shape of the house: imports go down only, the axes are ignorant of each other."""

import ast
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ninefold.places import option_files

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"

GROUND = {
    "default_axes", "errors", "exits", "files", "frameworks", "machine", "numbers", "parser",
    "places", "process", "progress", "ranks", "result", "score", "secrets", "signals", "streams",
    "study_record", "tables", "tree", "types", "waits", "words",
}  # fmt: skip
# What each package, or module directly in ninefold/, may import: packages, or single modules.
MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(GROUND, GROUND),
    "task": GROUND | {"engine"},
    "model": GROUND,
    "engine": GROUND,
    "checkpoint": GROUND | {"engine"},
    "logger": GROUND,
    "measure": GROUND | {"engine", "tournament/neighbors"},
    "dataset": GROUND | {"engine"},
    "config": GROUND | {"checkpoint/manifest", "dataset", "engine/amp_keys"},
    "train": GROUND
    | {"dataset", "engine", "task", "model", "logger", "measure", "checkpoint"}
    | {"config/combinations", "config/untrusted", "config/spec"},
    "stats": GROUND,
    "answer": GROUND | {"stats", "tournament", "config/options", "config/conf_files"},
    "tournament": GROUND | {"stats"},
    "report": GROUND
    | {"answer", "stats", "tournament", "config/options", "config/rules", "config/conf_files"},
    "launch": GROUND | {"train", "config", "checkpoint/manifest", "tournament"},
    "study": GROUND
    | {"launch", "config", "checkpoint/manifest", "answer", "stats", "report", "tournament"},
    "plugins": GROUND | {"study", "launch", "config"},
    "__init__": {"places"},
    "bench": GROUND | {"answer", "stats", "tournament", "diff/compare", "diff/kinds"},
    "diff": GROUND | {"bench", "tournament/contestant"},
    "sweeps": GROUND | {"plugins", "study", "launch", "config"},
    "main": GROUND | {"sweeps", "plugins", "launch", "config"},
    "__main__": GROUND | {"main", "report", "config", "bench", "diff"},
    "api": GROUND
    | {"answer", "stats", "tournament", "dataset", "task", "engine", "report"}
    | {"launch/events", "train/evaluate", "train/build", "checkpoint/manifest"}
    | {"config/configuration"},
    "train.py": {"main", "signals"},
    "evaluate.py": {"main", "signals"},
}
MAY_IMPORT["extensions"] = {*MAY_IMPORT} - {"bench"}  # and nothing imports them
COMPOSING = {
    "main", "sweeps", "plugins", "config", "study", "extensions", "launch/runs", "launch/command",
    "dataset/mapped",  # which builds what its configuration names when it is loaded
    "train/build", "train/run", "train/evaluate", "train/turns",
}  # fmt: skip
PRECISION = {"autocast", "bfloat16", "float16", "half", "gradscaler", "amp"}
PARALLELISM = {
    "distributeddataparallel", "dataparallel", "distributed", "world_size", "ddp", "rank",
    "all_reduce",
}  # fmt: skip
MODES = PRECISION | PARALLELISM | {
    "dtype", "scaler", "fp32", "tf32", "precision", "parallel", "dp", "context", "device", "cuda",
    "cpu", "replicas", "isinstance", "type", "is_enabled",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """Every module of ours: `amp`, `parallel/ddp`, `parallel/__init__`, `train.py`.

    Not those of bench/inject, which the Python of compared commands imports, without ninefold.
    """
    package = ROOT / "ninefold"
    found = {
        path.relative_to(package).with_suffix("").as_posix(): path for path in package.rglob("*.py")
    }
    return {
        **{name: path for name, path in found.items() if not name.startswith("bench/inject/")},
        **{path.name: path for path in ROOT.glob("*.py")},
    }


MODULES = modules()


def package(module: str) -> str:
    """`report` for `report/data/runs`; a module directly in ninefold/ is its own package."""
    return module.partition("/")[0]


@functools.cache
def imported(path: Path) -> list[str]:
    """The absolute dotted names that a file imports, inside functions too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide what is imported"
            found += [f"{node.module}.{name.name}" for name in node.names]
    return found


def ours(name: str) -> str | None:
    """The module of ours that an import of this name reaches; None of another package."""
    parts = name.split(".")
    if parts[0] != "ninefold":
        return None
    for end in (len(parts), len(parts) - 1):  # the last part may be a name in a module
        module = "/".join(parts[1:end])
        for candidate in (module, f"{module}/__init__".lstrip("/")):
            if candidate in MODULES:
                return candidate
    raise AssertionError(f"{name} is no module of ours")


def test_a_package_imports_only_what_its_row_allows():
    for module, path in MODULES.items():
        own = package(module)
        # The table of what the core asks of extensions is in extensions/__init__.
        free, allowed = {None, "__init__", "extensions/__init__"}, {own, *MAY_IMPORT[own]}
        for name in imported(path):
            if (target := ours(name)) not in free:
                of = {package(target), target.removesuffix("/__init__")}
                assert of & allowed, f"{module} imports {name}"


def extensions() -> list[str]:
    return sorted(path.parent.name for path in ROOT.glob("ninefold/extensions/*/__init__.py"))


def test_the_core_neither_imports_nor_names_a_module_of_an_extension():
    named = re.compile(rf"\bextensions[./]({'|'.join(extensions())})\b")
    found = {
        module: lines
        for module, path in MODULES.items()
        if package(module) != "extensions"
        if (lines := [line for line in path.read_text().splitlines() if named.search(line)])
    }
    assert found == {}


def test_an_extension_has_a_name_that_no_module_of_the_core_has():
    assert not {*extensions()} & {package(module) for module in MODULES}


def test_imports_have_no_circle():
    graph = {
        module: {t for name in imported(path) if (t := ours(name)) and t != module}
        for module, path in MODULES.items()
    }
    TopologicalSorter(graph).prepare()


def reachable(start: Iterable[str]) -> tuple[set[str], set[str]]:
    """The modules of ours that importing these reaches, and the other packages that they import."""
    found: set[str] = set()
    others: set[str] = set()
    left = set(start)
    while left:
        found.add(module := left.pop())
        for name in imported(MODULES[module]):
            target = ours(name)
            if target is None:
                others.add(name.partition(".")[0])
            elif target not in found:
                left.add(target)
    return found, others - sys.stdlib_module_names - {"ninefold"}


# What the engine reaches besides itself: errors and how they name files, trees of tensors, scores.
UNDER_THE_ENGINE = {"errors", "machine", "places", "score", "secrets", "tree"}


def test_the_engine_is_read_without_configuration_processes_and_files():
    code = [m for m in MODULES if m.startswith("engine/") and not m.endswith("_keys")]
    found, others = reachable(code)
    assert {m for m in found if not m.startswith("engine/")} <= UNDER_THE_ENGINE
    assert others == {"torch", "numpy"}


def test_every_wait_in_a_loop_goes_through_the_function_that_has_a_deadline():
    assert [m for m, path in MODULES.items() if "sleep(" in path.read_text()] == ["waits"]


def test_hydra_and_omegaconf_are_known_only_where_configuration_is_composed_or_built():
    knowing = {
        module
        for module, path in MODULES.items()
        for name in imported(path)
        if name.split(".")[0] in ("hydra", "omegaconf")
    }
    assert {m for m in knowing if m not in COMPOSING and package(m) not in COMPOSING} == set()


def test_what_hydra_may_change_is_imported_in_one_module():
    private = [module for module, path in MODULES.items() if "hydra._internal" in path.read_text()]
    assert private == ["config/hydra_parts"]


# Modules that open, as they are, only files of ours, of the system, or of a folder they just made.
OWN_FILES = {
    "config/conf_files", "config/fingerprint", "config/search_path",
    "config/untrusted",
    "bench/guardian", "dataset/cache", "launch/workers", "machine",
    "measure/environment", "report/render/templates",
    "study/start", "tournament/neighbors",
}  # fmt: skip
WHOLE = ("read_bytes", "read_text", "write_bytes", "write_text")


def careless(source: str) -> Iterator[str]:
    """The calls of a file that open one without `files.opener`: to write, or to read it whole."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        if method and name in WHOLE:
            yield ast.unparse(node)
        if name != "open" or any(word.arg == "opener" for word in node.keywords):
            continue
        mode = next(iter(node.args[0 if method else 1 :]), None)
        said = mode.value if isinstance(mode, ast.Constant) else "r"
        if "x" not in str(said) and (not method or set(str(said)) & set("wa+")):
            yield ast.unparse(node)


def test_files_are_opened_so_that_no_link_is_followed_and_no_fifo_waited_for():
    found = {m: list(careless(path.read_text())) for m, path in MODULES.items()}
    assert {m: calls for m, calls in found.items() if calls and m not in OWN_FILES} == {}


def words(source: str) -> set[str]:
    """The words of a file's code: names and strings, but no comments and no docstrings."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                docstrings.add((first.lineno, first.col_offset))
    found: set[str] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]  # f-strings are tokens of their own from 3.12 on
        if kind in ("NAME", "STRING", "FSTRING_MIDDLE") and token.start not in docstrings:
            found.update(re.findall(r"\w+", token.string.lower()))
    return found


def test_parallelism_knows_no_precision():
    for module, path in MODULES.items():
        if module.startswith("engine/parallel/"):
            assert not words(path.read_text()) & PRECISION, module


def test_precision_knows_no_parallelism():
    assert not words(MODULES["engine/amp"].read_text()) & PARALLELISM


def yamls(group: str) -> set[str]:
    return {path.stem for path in (CONF / group).glob("*.yaml")}


# Of the groups whose options have code of ours that others might ask about by name.
ASKED_ABOUT = ("parallel", "amp", "dataset", "task", "model", "logger")
# Where a word that is also an option's name means something else, or is what PyTorch is asked for.
OTHER_MEANINGS = {
    ("bench/strategies", "ddp"), ("checkpoint/store", "none"), ("task/loss", "none"),
    ("extensions/volumes/volumes", "masks"), ("report/data/runs", "folder"),
    ("answer/gather", "dp"),  # whose wrapper takes time
    *(("report/loop_settings", name) for name in ("dp", "ddp", "default")),
}  # fmt: skip


def option_names() -> set[str]:
    """The names of options, with the dotted names of what they build and of its modules."""
    found = set()
    for group in ASKED_ABOUT:
        for path in option_files(group):
            built = set(targets(OmegaConf.to_container(OmegaConf.load(path))))
            own = {name for name in built if name.startswith("ninefold.")}
            found |= {path.stem, *own, *(name.rpartition(".")[0] for name in own)}
    return found


def literals(node: ast.expr) -> Iterator[str]:
    """The strings in an expression of constants."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value.rstrip("- ")  # `dp-` begins the name of a cell
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        yield from (text for each in node.elts for text in literals(each))
    elif isinstance(node, ast.Dict):
        yield from (text for key in node.keys if key for text in literals(key))


def compared(source: str) -> Iterator[str]:
    """The strings that a file compares something with."""
    for node in ast.walk(ast.parse(source)):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("startswith"):
            asked = node.args
        for each in asked:
            yield from literals(each)


def test_nothing_asks_for_an_option_by_its_name_where_the_option_can_say_it():
    names = option_names()
    found = {
        (module, text)
        for module, path in MODULES.items()
        for text in compared(path.read_text())
        if text in names and module.rpartition("/")[2] != text.rpartition(".")[2]
    }
    assert found - OTHER_MEANINGS == set()


def test_an_option_has_the_name_of_the_module_that_it_is_built_by():
    for group in ("parallel", "dataset", "task", "model", "logger"):
        for path in option_files(group):
            built = targets(OmegaConf.to_container(OmegaConf.load(path)))
            modules = {name.split(".")[-2] for name in built if name.startswith("ninefold.")}
            assert modules <= {path.stem.removesuffix("3d")}, path


def test_the_loggers_that_a_run_has_by_itself_are_those_of_the_core():
    (chosen,) = (d["logger"] for d in OmegaConf.load(CONF / "train.yaml").defaults if "logger" in d)
    assert OmegaConf.load(CONF / "logger" / "default.yaml").defaults == chosen
    assert {*chosen} == {*yamls("logger")} - {"default", "quiet"}


def targets(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        if "_target_" in tree:
            yield tree["_target_"]
        for value in tree.values():
            yield from targets(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from targets(value)


def test_every_target_in_the_configuration_can_be_imported():
    for path in (*CONF.glob("*.yaml"), *option_files()):
        for target in targets(OmegaConf.to_container(OmegaConf.load(path))):
            module, _, name = target.rpartition(".")
            assert callable(getattr(import_module(module), name)), path


def test_the_training_loop_has_no_branch_on_a_mode():
    tree = ast.parse(MODULES["engine/loop"].read_text())
    (train,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "train")
    branches = [n.test for n in ast.walk(train) if isinstance(n, ast.If | ast.IfExp)]
    subjects = [n.subject for n in ast.walk(train) if isinstance(n, ast.Match)]
    assert branches
    for test in [*branches, *subjects]:
        assert not words(ast.unparse(test)) & MODES, ast.unparse(test)


LAUNCHERS = ("main", "sweeps", "result", "config.job", "config.rules", "config.overrides",
             "config.resume", "dataset.digits", "dataset.folder", "dataset.masks",
             "dataset.cache")  # fmt: skip


def test_the_launchers_side_imports_no_torch():
    imports = ", ".join(f"ninefold.{module}" for module in LAUNCHERS)
    code = f"import sys, {imports}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


TRAINING = {"torchvision", "hydra", "omegaconf", "yaml", "tensorboard", "sklearn", "jinja2", "PIL"}


def test_bench_and_time_steps_import_only_the_packages_that_pyproject_lists_for_them():
    bench = [name.replace("/", ".") for name in MODULES if name.startswith("bench/")]
    imports = ", ".join(f"ninefold.{name}" for name in [*bench, "api.steps"])
    code = f"import sys, {imports}; assert not {TRAINING} & {{*sys.modules}}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# Each may import those to its left.
LAYERS = ("data", "tree", "loop_settings", "groups", "builder", "render", "folder")
REPORT = {
    name.removeprefix("report/"): path
    for name, path in MODULES.items()
    if name.startswith("report/") and name not in ("report/__init__", "report/__main__")
}


def test_a_layer_of_the_report_imports_only_itself_and_those_below():
    for module, path in REPORT.items():
        below = LAYERS[: LAYERS.index(module.split("/")[0]) + 1]
        for name in imported(path):
            package, *inside = (ours(name) or "").split("/")
            assert package != "report" or inside[0] in below, f"{module} imports {name}"


def test_each_file_that_make_quick_names_is_there():
    shown = subprocess.run(
        ["make", "--dry-run", "quick-tests"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    names = [word.partition("::")[0] for word in shown.stdout.split() if word.startswith("tests/")]
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []
