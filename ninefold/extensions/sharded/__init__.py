"""Parameters spread over processes (parallel=fsdp), and sharded checkpoints."""
