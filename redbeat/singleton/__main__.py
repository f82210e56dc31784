"""``python -m redbeat.singleton``."""

from redbeat.singleton.command import main

if __name__ == "__main__":
    main(prog_name="python -m redbeat.singleton")
