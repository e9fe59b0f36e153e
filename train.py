"""Train a model: python train.py [-m] [group=option ...] [key=value ...]."""

if __name__ == "__main__":  # workers import this file too, and need nothing of it
    from ninefold.main import main

    main("train")
