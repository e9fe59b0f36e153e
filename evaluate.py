"""Evaluate a checkpoint: python evaluate.py ckpt=RUN_FOLDER_OR_FILE [group=option ...]."""

if __name__ == "__main__":  # workers import this file too, and need nothing of it
    from ninefold.signals import exit_until_handled

    exit_until_handled()  # the imports that follow take half a second
    from ninefold.main import main

    main("evaluate")
