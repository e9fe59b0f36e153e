"""What ninefold takes from hydra._internal, which Hydra may change with any version: all is here.

Hydra's public `main` composes, makes the folder and runs in one call. Here a job is checked between
the first and the second, and a study composes each of its cells: that takes Hydra's loader, parser
of flags and callbacks. A sweep has its jobs in the order of Hydra's own sweeper.
"""

from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl, get_overrides_dirname
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_automatic_config_search_path, get_args_parser

__all__ = [
    "BasicSweeper",
    "Callbacks",
    "ConfigLoaderImpl",
    "Hydra",
    "create_automatic_config_search_path",
    "get_args_parser",
    "get_overrides_dirname",
]
