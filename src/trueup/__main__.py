"""`python -m trueup` is the command `trueup`."""

from trueup.cli import command

if __name__ == "__main__":
    command()
