"""The table of a sweep: every try of every arm on validation data, and the chosen one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whence.report.comparison.units import Units
from whence.report.formatting import format_number


def sweep_panel(sweep: Mapping[str, Any], units: Units) -> dict[str, Any]:
    """A panel of the kind table, from the record of a sweep."""
    names = list(sweep["settings"])
    rows = [
        [
            one["arm"],
            *(str(one["settings"][name]) for name in names),
            "failed" if one["mean"] is None else format_number(one["mean"] * units.value_factor, units.decimals),
            "chosen" if one["chosen"] else "",
        ]
        for one in sweep["tries"]
    ]
    seeds = ", ".join(map(str, sweep["seeds"]))
    note = (
        f"{sweep['tries_per_arm']} tries of each arm, all with the same budget and the seed{'s' if len(sweep['seeds']) > 1 else ''} "
        f"{seeds}. The settings were chosen on {sweep['split']} data; these runs evaluated no test data. The comparison uses other seeds."
    )
    head = ["arm", *names, f"{units.label} on {sweep['split']}", ""]
    return {"kind": "table", "title": "Sweep", "head": head, "rows": rows, "note": note}
