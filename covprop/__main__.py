"""`python -m covprop`, also what torchrun starts."""

from covprop.cli import main

if __name__ == "__main__":
    main()
