"""A check of usage errors, shared by the tests of this folder."""

import pytest

from whence import WhenceError


def check_error(call, text):
    """The call raises an error with the argument, the value and the remedy of the text; the rule may be worded otherwise."""
    with pytest.raises(WhenceError) as caught:
        call()
    output = str(caught.value)
    assert output.partition(", but ")[0] == text.partition(", but ")[0]
    assert output.rpartition("; ")[2] == text.rpartition("; ")[2]
