"""What users would train with instead: the raw loop, the published one, and frameworks.

Each is written as its own documentation would, at its fastest settings.
"""
