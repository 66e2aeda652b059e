"""`python -m tilesmith`."""

from tilesmith.cli import main

if __name__ == "__main__":
    main(prog_name="tilesmith")
