"""`python -m ninefold export`: a trained network as a file for use elsewhere, verified."""

USAGE = "ckpt=RUN format=FORMAT: a trained network as safetensors, ONNX or pt2"
