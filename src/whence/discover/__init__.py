"""Name the formula of a curve that was learned without one.

``Curves`` holds trained values over distance, by seed and head; ``discover`` names the formula of each kind of head, and
``write_mechanism`` writes it as a Position.
"""

from whence.errors import require_package

require_package("scipy", "whence.discover", "lab")

from whence.discover.curves import Curves, read_tables  # noqa: E402
from whence.discover.fitting import Fit  # noqa: E402
from whence.discover.kinds import Kind, discover  # noqa: E402
from whence.discover.mechanism_file import format_mechanism, write_mechanism  # noqa: E402
from whence.discover.naming import Naming, Ranked, name_formula  # noqa: E402

__all__ = ["Curves", "Fit", "Kind", "Naming", "Ranked", "discover", "format_mechanism", "name_formula", "read_tables", "write_mechanism"]  # fmt: skip
