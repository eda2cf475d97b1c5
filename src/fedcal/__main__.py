"""`python -m fedcal`."""

from fedcal.cli.entry import main

if __name__ == "__main__":
    main()
