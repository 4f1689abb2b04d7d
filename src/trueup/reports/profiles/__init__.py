"""Profiles of a domain: `profile` reads the TOML files of this directory, `sections` builds the sections they ask for."""
