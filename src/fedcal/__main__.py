"""`python -m fedcal`."""

from fedcal.cli.main import main

if __name__ == "__main__":
    main()
