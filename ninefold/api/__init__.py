"""The Python interface: what a notebook or a script calls. `ninefold.NAME` imports it when used."""
