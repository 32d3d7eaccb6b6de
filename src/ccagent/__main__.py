"""`python -m ccagent`."""

from ccagent.cli import main

if __name__ == "__main__":
    main()
