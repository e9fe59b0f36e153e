"""What model=timm needs besides the dependencies of ninefold."""

PACKAGE = "timm"
