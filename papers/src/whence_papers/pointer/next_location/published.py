"""The two published data sets, from the folder of WHENCE_DATA.

GeoLife (Zheng et al. 2010): stays of 45 users, detected and clustered with trackintel by Hong et al. (arXiv 2212.01953).
Foursquare in New York (Yang et al. 2015): check-ins of 535 users, split by Wang et al. (arXiv 2308.15197), with places
that training does not have already as one number.
"""

from __future__ import annotations

from whence.lab.data.corpora import data_file
from whence_papers.pointer.next_location.histories import split_by_days
from whence_papers.pointer.next_location.visits import Visit, read_visits

Parts = dict[str, list[Visit]]


def geolife(asked: str) -> Parts:
    """Stays, split by days within each user."""
    return split_by_days(read_visits(data_file(asked, "geolife", "mobility/geolife_stays.csv"), asked))


def foursquare(asked: str) -> Parts:
    """Check-ins, which have no duration; the parts are separate files."""
    return {
        part: read_visits(data_file(asked, "foursquare", f"mobility/foursquare_{part}.csv"), asked)
        for part in ("train", "valid", "test")
    }


PUBLISHED = {"geolife": geolife, "foursquare": foursquare}
