"""Train a model: python train.py [-m] [group=option ...] [key=value ...]."""

import hydra
from omegaconf import DictConfig

from ninefold import main as launch
from ninefold.config import resolvers

resolvers.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def train(config: DictConfig) -> float | None:
    return launch.train(config)


if __name__ == "__main__":
    launch.main(train)
