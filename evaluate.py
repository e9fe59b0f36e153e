"""Evaluate a checkpoint: python evaluate.py ckpt=RUN_FOLDER_OR_FILE [group=option ...]."""

import hydra
from omegaconf import DictConfig

from ninefold import main as launch
from ninefold.config import resolvers

resolvers.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="evaluate")
def evaluate(config: DictConfig) -> None:
    launch.evaluate(config)


if __name__ == "__main__":
    launch.main(evaluate)
