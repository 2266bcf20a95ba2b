"""`python -m croma_bundle`."""

from croma_bundle.cli import main

if __name__ == "__main__":
    main()
