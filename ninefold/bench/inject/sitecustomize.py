"""Loaded by each Python that a compared command starts: waits for torch, then tells of its steps.

Python imports a module of this name at its start from the first folder of sys.path that has one.
This one leaves no trace of itself: the folder goes from sys.path, and the module that would have
been loaded without it is loaded in its place. It must be quick, as helper processes load it too, so
it imports nothing that Python has not imported already. It is for Python 3.9 and later.
"""

import os
import sys

HERE = os.path.dirname(__file__)
SEED = "NINEFOLD_BENCH_SEED"  # the number of a round of whole runs
SOCKET = "NINEFOLD_BENCH"  # the path of the socket at which `ninefold bench` listens
OURS = {name: value for name, value in os.environ.items() if name.startswith(SOCKET)}
CHANCE = "random", "numpy.random", "torch.random", "torch.cuda.random"  # that a hook seeds
MODULES = (  # that the hook changes, or looks at
    "torch.cuda",
    "torch.nn.modules.module",
    "torch.optim.optimizer",
    "torch.utils.data.dataloader",
    "torch.nn.parallel.distributed",
)


class Waiting:
    """A finder that loads the hook behind modules of torch; it finds nothing by itself."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name not in self.names:
            return None
        for finder in [each for each in sys.meta_path if each is not self]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = Loader(spec.loader)
                return spec
        return None


class Loader:
    """A loader that hands the module on to the hook once it is loaded."""

    def __init__(self, loader):
        self.loader = loader

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def exec_module(self, module):
        module.__loader__ = module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        quietly(tell, module)


def tell(module):
    """Tell the hook of a module that is loaded; load the hook before the first one.

    The hook reads its variables then, also where the script has cleared its environment.
    """
    sys.path.insert(0, HERE)
    lost = OURS.keys() - os.environ.keys()
    os.environ.update({name: OURS[name] for name in lost})
    try:
        if os.environ.get(SEED):
            import ninefold_bench_seeds as hook
        else:
            import ninefold_bench_hook as hook

        hook.loaded(module)
    finally:
        sys.path.remove(HERE)
        for name in lost:
            del os.environ[name]


def quietly(call, *arguments):
    """Call a function of ours: whatever it raises is one line, and the command goes on."""
    try:
        call(*arguments)
    except Exception as error:
        print(f"ninefold bench: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def start():
    """Wait for what a hook changes, and note which Python has loaded it."""
    step = os.environ.get("NINEFOLD_BENCH_STEP", "").partition(":")[0]
    chance = CHANCE if os.environ.get(SEED) or os.environ.get("NINEFOLD_BENCH_RECORD") else ()
    sys.meta_path.insert(0, Waiting({*MODULES, *chance, step}))
    for name in chance:
        if name in sys.modules:
            tell(sys.modules[name])
    with open(os.path.join(os.path.dirname(os.environ[SOCKET]), "loaded"), "a") as file:
        print(sys.prefix, file=file)


def next_one():
    """Load the sitecustomize that stands behind this one, as if this one were not there."""
    sys.path[:] = [folder for folder in sys.path if folder != HERE]
    sys.path_importer_cache.pop(HERE, None)
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401  # an ImportError of that name is what site expects


if os.environ.get(SOCKET):
    quietly(start)
next_one()
