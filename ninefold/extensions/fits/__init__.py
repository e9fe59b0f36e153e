"""`ninefold fits`: the memory of a training step, counted before anything runs on the device."""
