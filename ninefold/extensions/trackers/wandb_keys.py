"""What logger=wandb needs besides the dependencies of ninefold."""

PACKAGE = "wandb"
