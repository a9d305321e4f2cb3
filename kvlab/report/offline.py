"""HTML that needs no network and no script: what a page would fetch, and a copy that does not.

The usual export of a notebook asks content networks for RequireJS, MathJax and Mermaid, so it is
blank or broken offline. Here ``offline`` copies a body without scripts and dead links, and
``external_loads`` proves that nothing is fetched. A link that a reader clicks may lead to the
web; what the page itself loads may not.

    >>> external_loads('<img src="plot.png"><a href="https://example.org">more</a>')
    []
    >>> external_loads('<script src="https://example.org/x.js"></script>')
    ['script src=https://example.org/x.js']
    >>> offline('<a href="02_b.ipynb#Part">b</a> <a href="x.md">x</a>', {"02_b.ipynb": "02_b.html"})
    '<a href="02_b.html#Part">b</a> x'
"""

import html
import re
from collections import Counter
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import PurePosixPath

LOADING = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "object": ("data",),
    "embed": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "use": ("href", "xlink:href"),
    "image": ("href", "xlink:href"),
}
DROPPED = {"script", "link", "iframe", "object", "embed"}
VOID = {"link", "embed"}  # have no end tag
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
SCROLLS = 'tabindex="0" role="group" aria-label="{}, scrolls sideways"'
_TAG = re.compile(r"<[^>]+>")
_REMOTE = re.compile(r"(?:https?:)?//", re.I)
_CSS_REMOTE = re.compile(r"(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)", re.I)


def external_loads(page: str) -> list[str]:
    """What a browser would fetch from the network for ``page``, as "tag attribute=address"."""
    finder = _Loads()
    finder.feed(page)
    return finder.found + [f"css {address}" for address in _CSS_REMOTE.findall(page)]


def offline(body: str, targets: Mapping[str, str]) -> str:
    """``body`` without scripts and without links that lead nowhere.

    Args:
        targets: name of a file -> where the report has it, seen from the page; a relative link to
            any other file becomes text.
    """
    copy = _Offline(targets)
    copy.feed(body)
    copy.close()
    return "".join(copy.kept)


class _Loads(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in LOADING.get(tag, ()) and value and _REMOTE.match(value.strip()):
                self.found.append(f"{tag} {name}={value.strip()}")


class _Offline(HTMLParser):
    """Copies HTML to ``kept``, less what needs the network or leads nowhere.

    What is wider than the page gets a frame that scrolls, also by keyboard; a heading gets an
    anchor.
    """

    def __init__(self, targets: Mapping[str, str]) -> None:
        super().__init__(convert_charrefs=False)
        self.targets = targets
        self.kept: list[str] = []
        self.dropped = 0  # depth inside of a dropped element
        self.links: list[bool] = []  # of the open links: is the tag kept?
        self.heading = 0  # where in ``kept`` the last heading begins
        self.anchors: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        text = self.get_starttag_text() or ""
        if tag in DROPPED:
            self.dropped += tag not in VOID
        elif self.dropped:
            return
        elif tag == "a":
            target = _target(values.get("href") or "", self.targets)
            found = {"id": values.get("id"), "href": target}
            kept = "".join(f' {k}="{html.escape(v)}"' for k, v in found.items() if v)
            self.links.append(bool(kept))
            if kept:
                self.kept.append(f"<a{kept}>")
        elif tag == "img" and _REMOTE.match(values.get("src") or ""):
            self.kept.append(f"[picture on the web: {html.escape(values.get('alt') or '')}]")
        elif tag == "table":
            self.kept.append(f'<div class="scroll" {SCROLLS.format("Table")}><table>')
        elif "tabindex" not in values and _scrolls(tag, values):
            self.kept.append(text[:-1] + ' tabindex="0">')
        elif tag in HEADINGS:
            self.heading = len(self.kept)
            self.kept.append(f"<{tag}>")
        else:
            self.kept.append(text)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in DROPPED:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag in DROPPED:
            self.dropped -= tag not in VOID and self.dropped > 0
        elif tag in HEADINGS and not self.dropped:
            text = html.unescape(_TAG.sub("", "".join(self.kept[self.heading + 1 :])))
            self.kept[self.heading] = f'<{tag} id="{self._anchor(text)}">'
            self.kept.append(f"</{tag}>")
        elif tag == "th" and self.kept[-1].startswith("<th"):  # empty, so no header of anything
            self.kept[-1] = "<td></td>"
        elif not self.dropped and (tag != "a" or (self.links and self.links.pop())):
            self.kept.append(f"</{tag}></div>" if tag == "table" else f"</{tag}>")

    def _anchor(self, text: str) -> str:
        """The anchor of a heading, as GitHub makes it: "Case a: two" gives "case-a-two"."""
        anchor = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") or "part"
        times = self.anchors[anchor]
        self.anchors[anchor] += 1
        return f"{anchor}-{times}" if times else anchor

    def handle_data(self, data: str) -> None:
        if not self.dropped:
            self.kept.append(data)

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")


def _scrolls(tag: str, values: Mapping[str, str | None]) -> bool:
    """Whether the browser gives the element a scroll bar where it is too wide."""
    picture = (values.get("class") or "").startswith("output_png ")
    return tag == "pre" or picture or "overflow" in (values.get("style") or "")


def _target(target: str, targets: Mapping[str, str]) -> str | None:
    """Where a link leads in the report; None if the report does not hold that."""
    if re.match(r"[a-z][a-z0-9+.-]*:|#", target, re.I):
        return target
    path, _, anchor = target.partition("#")
    page = targets.get(PurePosixPath(path).name)
    return page and page + (f"#{anchor}" if anchor else "")
