"""What programs of other people call: `import ninefold`, then `ninefold.time_steps(...)`."""
