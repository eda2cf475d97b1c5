"""`python -m fedcal`."""

from fedcal.cli import main

if __name__ == "__main__":
    main()
