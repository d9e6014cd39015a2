"""Whether runs of one data set were certified on the same images, without which no ACR compares."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from covprop.report.read import Certification


def different_images(certifications: Sequence[Certification]) -> list[str]:
    """A warning for each data set of which not all runs were certified on the same images.

    Logs that do not say their data set are taken to be of one.
    """
    sets: dict[str, dict[Hashable, list[Certification]]] = {}
    for c in certifications:
        sets.setdefault(c.images_of, {}).setdefault(images_certified(c), []).append(c)
    return [
        f"{f'{data}: not all runs' if data else 'not all runs'} were certified on the same images, "
        f"so their ACR and accuracy do not compare: {_told(list(found.values()))}."
        for data, found in sets.items()
        if len(found) > 1
    ]


def images_certified(c: Certification) -> Hashable:
    """Which images of its data set a run was certified on, to be compared with another run's.

    By their numbers and labels: number 3 of 5,000 held-out images is not number 3 of 1,000, and
    logs need not name their data set. The hash is that of an own set, which may have changed.
    """
    images = zip(c.rows.idx.tolist(), c.rows.label.tolist(), strict=True)
    return frozenset(images), c.meta.get("images")


def _told(groups: Sequence[Sequence[Certification]]) -> str:
    """`a and 2 more on 500, b on 500 others, c on 62`."""
    said = []
    counts: set[int] = set()
    for members in sorted(groups, key=len, reverse=True):
        more, count = len(members) - 1, len(members[0].rows)
        runs = members[0].name + (f" and {more} more" if more else "")
        said.append(f"{runs} on {count:,}" + (" others" if count in counts else ""))
        counts.add(count)
    return ", ".join(said)
