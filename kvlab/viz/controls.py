"""Controls of a panel: from a shorthand to a labelled widget, and what it may be set to.

    True                     tick box
    range(1, 9)              slider over 1 .. 8, starts at 1
    (1, 8) or (1, 8, 2)      slider from 1 to 8 including 8, in steps of 1 or 2
    (0.0, 1.0)               slider over numbers, in a hundred steps
    [1, 2, 4, 8]             slider that stops at these numbers
    ["fixed", "before"]      menu, also for a dict of label to value
    a widget                 as it is, if it has a value

Worked example: ``control("dcp_size", [1, 2, 4])`` is a slider named "dcp size" that starts at 1.
"""

import ipywidgets as widgets

from kvlab.errors import KvlabError


def label(name: str) -> str:
    """The name of a control as a reader sees it: "dcp_size" -> "dcp size"."""
    return name.replace("_", " ")


def control(name: str, spec: object) -> widgets.Widget:
    """The widget for ``spec``, with a label, that reports a value when the user lets go.

    Errors: KvlabError for what no shorthand describes, and for a widget without a value.
    """
    made = spec if isinstance(spec, widgets.Widget) else _from_shorthand(name, spec)
    if not made.has_trait("value"):
        raise KvlabError(
            f"a control has a value: {name} is a {type(made).__name__}; use a slider, a menu or "
            "a tick box"
        )
    if made.has_trait("description") and not made.description:
        made.description = label(name)
    if made.has_trait("continuous_update"):
        made.continuous_update = False
    if made.has_trait("style") and hasattr(made.style, "description_width"):
        made.style.description_width = "initial"
    made.add_class(f"kvlab-control-{name.replace('_', '-')}")
    return made


def move(name: str, moved: widgets.Widget, value: object) -> None:
    """Set a control as a user would. Errors: KvlabError for a value that it cannot take."""
    try:
        moved.value = value
        taken = moved.value == value  # sliders pull a value into their range without a word
    except Exception:  # TraitError and what a widget's own validators raise
        taken = False
    if not taken:
        raise KvlabError(
            f"control {name} takes {takes(moved)}: got {value!r}; the panel is unchanged"
        )


def bound(moved: widgets.Widget, low: int, high: int) -> None:
    """Let a slider run from ``low`` to ``high``; a value outside is pulled in."""
    if (moved.min, moved.max) == (low, high):
        return
    # The wider range first: a slider refuses a minimum above its maximum.
    moved.max = max(moved.max, low, high)
    moved.min = low
    moved.max = high


def takes(asked: widgets.Widget) -> str:
    """The values that a control takes, in words."""
    if asked.has_trait("options"):
        return "one of " + ", ".join(str(name) for name in asked._options_labels)
    if asked.has_trait("min"):
        return f"{asked.min} to {asked.max}"
    return f"values like {asked.value!r}"


def _from_shorthand(name: str, spec: object) -> widgets.Widget:
    if isinstance(spec, bool):
        return widgets.Checkbox(value=spec, indent=False)
    if isinstance(spec, range) and spec and spec.step > 0:
        return widgets.IntSlider(min=spec[0], max=spec[-1], step=spec.step, value=spec[0])
    if isinstance(spec, tuple) and len(spec) in (2, 3) and all(map(_is_number, spec)):
        low, high, *rest = spec
        if low < high and all(step > 0 for step in rest):
            if all(isinstance(number, int) for number in spec):
                return widgets.IntSlider(min=low, max=high, step=(rest or [1])[0], value=low)
            step = (rest or [(high - low) / 100])[0]
            return widgets.FloatSlider(min=low, max=high, step=step, value=low)
    if isinstance(spec, dict) and spec:
        return widgets.Dropdown(options=list(spec.items()))
    if isinstance(spec, list) and spec:
        slides = len(spec) > 1 and all(map(_is_number, spec))
        return (widgets.SelectionSlider if slides else widgets.Dropdown)(options=spec)
    raise KvlabError(
        f"a control is a bool, a range, (low, high) or (low, high, step) with low < high, a list, "
        f"a dict or a widget: {name} is {spec!r}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
