"""What logger=mlflow needs besides the dependencies of ninefold."""

PACKAGE = "mlflow"
