"""Packages beside the core: the folder NAME is the package `ninefold.NAME`."""
