"""The trackers MLflow (logger=mlflow) and Weights & Biases (logger=wandb)."""
