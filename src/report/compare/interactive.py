"""The script of an interactive page: Vega and the charts' specs, which replace the static images in a browser.

Vega evaluates expressions by its interpreter, so the page's policy allows this one script by its hash and no `eval`.
"""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from src.report.compare.charts import VL_VERSION, complete

HELP = "Point at a mark for its values. Zoom with Shift and the wheel, drag to move, double-click to go back."
# An image is replaced only when its chart is drawn: where that fails it stays.
DRAW = """
document.getElementById("help").hidden = false;
for (const [i, spec] of SPECS.entries()) {
  const figure = document.getElementById(`chart-${i}`), folded = figure.closest("details");
  const draw = () => {
    const image = figure.querySelector("svg"), view = document.createElement("div");
    spec.description = [...image.querySelectorAll("title,desc")].map(text => text.textContent).join(": ");
    spec.width = image.getBoundingClientRect().width;
    spec.autosize = {type: "fit-x", contains: "padding"};
    figure.append(view);
    vegaEmbed(view, spec, {renderer: "svg", actions: false, ast: true})
      .then(() => image.remove())
      .catch(error => { view.remove(); console.error(error); });
  };
  if (folded && !folded.open) folded.addEventListener("toggle", draw, {once: true});  // it has a width then
  else draw();
}
"""
ZOOM = {
    "name": "zoom",
    "select": {
        "type": "interval", "zoom": "wheel![event.shiftKey]",
        "translate": "[mousedown, window:mouseup] > window:mousemove!",
    },
    "bind": "scales",
}  # fmt: skip


def script(specs: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Returns the text of the page's script, and its hash as the page's policy names it."""
    import vl_convert

    data = json.dumps([_interactive(complete(spec)) for spec in specs])
    data = data.replace("<", "\\u003c")  # so that no text ends the script
    bundle = vl_convert.javascript_bundle(DRAW, vl_version=VL_VERSION)  # minified: it would put "<" back into the data
    text = f"const SPECS={data};\n{bundle}".replace("</script", "<\\/script").replace("\r\n", "\n")
    return text, f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _interactive(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the spec with tooltips, and with zoom where both axes are numbers."""
    layers = [_with_tooltip(layer) for layer in spec.get("layer", ())]
    view = {**spec, "layer": layers} if layers else _with_tooltip(spec)
    for part in layers or [view]:  # a rule has one axis
        encoding = part["encoding"]
        if all(encoding.get(axis, {}).get("type") == "quantitative" for axis in ("x", "y")):
            part["params"] = [ZOOM]
            break
    return view


def _with_tooltip(view: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the view with tooltips of its values, and of the group's name where it draws single values."""
    view_mark, encoding = view["mark"], view["encoding"]
    mark = {**(view_mark if isinstance(view_mark, Mapping) else {"type": view_mark}), "tooltip": True}
    if mark["type"] == "line" and not mark.get("point"):
        mark["point"] = {"opacity": 0, "size": 120, "tooltip": True}  # a line itself has no values to point at
    drawn = {
        channel["field"]: channel
        for channel in encoding.values()
        if isinstance(channel, Mapping) and "field" in channel and "type" in channel
    }
    if "group" not in drawn or "tooltip" in encoding or any("aggregate" in channel for channel in drawn.values()):
        return {**view, "mark": mark}
    told = [
        {"field": field, "type": channel["type"], "title": _in_a_line(channel.get("title")) or field}
        for field, channel in drawn.items()
        if field not in ("group", "run", "order")
    ]
    told.append({"field": "group", "type": "nominal", "title": "group"})
    return {**view, "mark": mark, "encoding": {**encoding, "tooltip": told}}


def _in_a_line(title: str | Sequence[str] | None) -> str:
    return title if isinstance(title, str) else " ".join(title or ())
