"""The checks live in modules of their own; their assertions are to say what differed, too."""

import pytest

pytest.register_assert_rewrite("tests.cases.check_rows", "tests.cases.check_counts")
