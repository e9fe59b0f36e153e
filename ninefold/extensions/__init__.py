"""Options, commands and answers that the core can be read without: each folder is one.

Options are found by their files NAME/conf/GROUP/OPTION.yaml. What else the core asks of extensions
is here; it imports none of them before it is needed.
"""

# The command `ninefold NAME` of NAME/__main__.py: what it takes, and is for.
COMMANDS = {
    "fits": "[memory=24GiB] [KEY=VALUE ...]: the memory of a training step, and the largest batch",
}
# The module whose `answer` answers studies of other questions than which configuration is fastest,
# and whose `decided` tells whether more rounds could change it; both return None of other studies.
ANSWERS = "ninefold.extensions.reports.answer"
# The ending of checkpoints that are folders, and the module whose `read` reads them.
SHARDED, READS_SHARDED = ".dcp", "ninefold.extensions.sharded.dcp"
DECODERS = ("nibabel",)  # packages that decode examples: a cache is of one version of each
MODELS = ("timm",)  # packages of models with arguments that name weights
