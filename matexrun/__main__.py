"""`python -m matexrun` is `matexrun`."""

from matexrun.cli import main

if __name__ == "__main__":
    main()
