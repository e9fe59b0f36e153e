"""Train a model: python train.py [-m] [group=option ...] [key=value ...]."""

if __name__ == "__main__":  # workers import this file too, and need nothing of it
    from ninefold.signals import exit_until_handled

    exit_until_handled()  # the imports that follow take half a second
    from ninefold.main import main

    main("train")
