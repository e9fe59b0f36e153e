"""The engine: how a network is trained, evaluated and timed, on torch and NumPy alone.

Read `loop` first; then `training`, whose fields are the parts that the loop works with, and
`state`, which is what a checkpoint holds. Configuration, processes, files and reports are outside.
"""
