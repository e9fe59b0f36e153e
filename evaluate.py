"""Evaluate a checkpoint: python evaluate.py ckpt=RUN_FOLDER_OR_FILE [group=option ...]."""

from ninefold.main import main

if __name__ == "__main__":
    main("evaluate")
