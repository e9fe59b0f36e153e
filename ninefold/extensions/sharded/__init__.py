"""Parameters spread over processes (parallel=fsdp, parallel=tensor), and sharded checkpoints."""
