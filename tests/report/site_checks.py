"""What every page of the site must keep, said as sentences about the pages that do not."""

import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from kvlab.report.offline import external_loads


class Seen(HTMLParser):
    """Links, anchors, headings, landmarks, and pictures without a description."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.headings: list[int] = []
        self.tags: Counter[str] = Counter()
        self.unnamed: list[str] = []
        self.nameless_navigation = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag is and says."""
        found = dict(attrs)
        self.tags[tag] += 1
        self.targets += [value for key in ("href", "src") if (value := found.get(key))]
        self.ids += filter(None, [found.get("id")])
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "img" and not found.get("alt"):
            self.unnamed.append((found.get("src") or "")[:60])
        if tag == "nav" and not found.get("aria-label"):
            self.nameless_navigation += 1


def faults(folder: Path) -> list[str]:
    """What is wrong with the pages below ``folder``, one sentence each."""
    pages = {}
    for path in sorted(folder.resolve().rglob("*.html")):
        pages[path] = Seen()
        pages[path].feed(path.read_text(encoding="utf-8"))
    found = [f"there is no page in {folder}"] if not pages else []
    for path, seen in pages.items():
        name = path.relative_to(folder.resolve()).as_posix()
        found += [f"{name} {sentence}" for sentence in [*_links(path, pages), *_form(seen)]]
        text = path.read_text(encoding="utf-8")
        found += [f"{name} would load {load}" for load in external_loads(text)]
    return found


def _links(path: Path, pages: dict[Path, Seen]) -> Iterator[str]:
    for target in pages[path].targets:
        if re.match(r"data:|https?:", target):
            continue
        place, _, anchor = unquote(target).partition("#")
        end = (path.parent / place).resolve() if place else path
        if not end.is_file():
            yield f"leads to {target}, which is not there"
        elif anchor and end in pages and anchor not in pages[end].ids:
            yield f"leads to {target}, and that page has no such anchor"


def _form(seen: Seen) -> Iterator[str]:
    twice = sorted(anchor for anchor, times in Counter(seen.ids).items() if times > 1)
    if twice:
        yield f"has anchors twice: {', '.join(twice[:3])}"
    if seen.headings[:1] != [1] or seen.headings.count(1) != 1:
        yield f"does not begin with its only h1: {seen.headings[:5]}"
    if any(below > above + 1 for above, below in pairwise(seen.headings)):
        yield f"skips a level of headings: {seen.headings}"
    if any(seen.tags[tag] != 1 for tag in ("header", "main", "footer")):
        yield "has not one header, one main part and one footer"
    if seen.nameless_navigation:
        yield "has a navigation without a name"
    if seen.unnamed:
        yield f"has pictures without a description: {seen.unnamed[:3]}"
    if seen.tags["script"]:
        yield "runs a script"
    if "#content" not in seen.targets or "content" not in seen.ids:
        yield "has no link that skips to the content"
