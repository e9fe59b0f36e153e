"""Configuration: keys and their types, overrides, resuming, checks. Nothing here imports torch.

Public: `job` (a composed configuration, checked and frozen), `spec.RunSpec` (what a worker gets),
`keys` (every key), `rules` (all problems at once), `resolvers.register`.
"""
