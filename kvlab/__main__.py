"""``python -m kvlab`` is the command ``kvlab``."""

if __name__ == "__main__":
    try:
        from kvlab.cli import main

        raise SystemExit(main())
    except ModuleNotFoundError as error:  # a machine that has a torch of its own and not the rest
        if error.name is None or error.name.split(".")[0] == "kvlab":
            raise
        raise SystemExit(
            f"error: kvlab needs {error.name}, and this Python lacks it; install it: `make setup`, "
            f"or `pip install -e .` in an environment of your own"
        ) from None
