"""Options, commands and answers that the core can be read without: each folder is one."""
