"""Train a model: python train.py [-m] [group=option ...] [key=value ...]."""

from ninefold.main import main

if __name__ == "__main__":
    main("train")
