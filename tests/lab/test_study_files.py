"""Study files that define nothing to run are refused with their name."""

import pytest

from whence import WhenceError
from whence.lab.study_files import load_study_file


@pytest.mark.parametrize(
    "body, message",
    [
        ("[]", r"returns nothing"), ("{}", r"returns nothing"), ("['mine']", r"returns 'mine'"), ("{'a': 1}", r"returns 'a'"),
    ],
)  # fmt: skip
def test_a_file_without_studies_is_one_error(tmp_path, body, message):
    path = tmp_path / "empty.py"
    path.write_text(f"def studies():\n    return {body}\n")
    with pytest.raises(WhenceError, match=rf"empty\.py, whose studies\(\) {message}.*at least one Study"):
        load_study_file(path)
