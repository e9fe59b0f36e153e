"""`ninefold fits`: the memory of a training step, counted before anything runs on the device."""

PARTS = ("weights", "gradients", "optimizer", "activations", "total")  # of what a step holds
COUNT = "count.json"
ROOM = 1.5  # times what is counted, for what is not: 1.12 to 1.48 were seen (README)
SHARE = 0.8  # of the main memory that is free: with more the machine might swap
