"""axe-core on a page or a part of it: what it finds serious or critical, in words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

GRAVE = ("serious", "critical")


def violations(
    page: Page, context: str | None = None, rules: Iterable[str] | None = None
) -> list[tuple[str, str, str]]:
    """(rule, element, what is wrong) of each grave violation; ``rules``: only these."""
    from axe_playwright_python.sync_playwright import Axe

    # Without preloading: a page of a file may not read its own style sheets, and would say so.
    options: dict[str, object] = {"resultTypes": ["violations"], "preload": False}
    if rules is not None:
        options["runOnly"] = {"type": "rule", "values": list(rules)}
    found = Axe().run(page, context=context, options=options).response["violations"]
    return [
        (violation["id"], node["html"][:120], node["failureSummary"][:300])
        for violation in found
        if violation["impact"] in GRAVE
        for node in violation["nodes"]
    ]
