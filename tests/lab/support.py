"""What the tests of the studies share."""

from types import SimpleNamespace

import pandas as pd


def lines(table: pd.DataFrame) -> list[SimpleNamespace]:
    """The rows of a table, its columns as attributes, plain Python values."""
    return [
        SimpleNamespace(**{str(k): v for k, v in row.items()}) for row in table.to_dict("records")
    ]
