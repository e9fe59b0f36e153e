"""Turns matplotlib's SVG into an element of a page that uses the page's colors and font."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from xml.etree import ElementTree

_SVG = "{http://www.w3.org/2000/svg}"
STRUCK = "struck"  # begins the id of text that is struck through


def adopt(text: str, colors: Mapping[str, str], tips: Mapping[str, str], about: str) -> str:
    """Return matplotlib's SVG as an element of the page.

    colors: CSS custom properties by the color they replace, such as `ink` by `#000001`.
    tips: tooltips by the id of their element.
    about: the picture in words.

    Ids are made unique on the page: a browser would use the first of two equal ones, which may be
    in a hidden picture.
    """
    root = ElementTree.fromstring(text)
    linked = set(re.findall(r"#([\w.-]+)", text))
    prefix = f"p{hashlib.sha256(text.encode()).hexdigest()[:8]}-"
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}style", f"{_SVG}metadata"):
                parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        name = element.attrib.pop("id", "")
        if name in tips:
            title = ElementTree.Element("title")
            title.text = tips[name]
            element.insert(0, title)
            for text_of in element.iter(f"{_SVG}text") if name.startswith(STRUCK) else ():
                text_of.set("style", f"text-decoration: line-through; {text_of.get('style', '')}")
        elif name in linked:
            element.set("id", prefix + name)
        for key, value in list(element.attrib.items()):
            if key.endswith("}href"):
                del element.attrib[key]
                element.set("href", f"#{prefix}{value[1:]}")
            elif key == "clip-path":
                element.set(key, value.replace("url(#", f"url(#{prefix}"))
            elif key in ("d", "x", "y"):
                element.set(key, _short(value))
            elif key == "transform" and value.startswith("rotate(-0 "):
                del element.attrib[key]
        if fill := element.attrib.pop("fill", None):  # custom properties work in a style only
            element.set("style", f"fill: {fill}; {element.get('style', '')}")
        if style := element.get("style"):
            element.set("style", _styled(style.replace("url(#", f"url(#{prefix}"), colors))
        if not (element.text or "").strip():
            element.text = None
        element.tail = None
    box = root.attrib["viewBox"]
    root.attrib.clear()
    _, _, width, height = box.split()
    root.attrib.update({"viewBox": box, "width": width, "height": height, "role": "img"})
    root.set("aria-label", about)
    return ElementTree.tostring(root, encoding="unicode")


def _short(numbers: str) -> str:
    """Return the numbers of a path rounded to a hundredth of a pixel, on one line."""
    return " ".join(re.sub(r"-?\d+\.\d+", lambda n: f"{float(n[0]):.2f}", numbers).split())


def _styled(style: str, colors: Mapping[str, str]) -> str:
    style = re.sub(r"font-family:[^;]*;?\s*", "", style)
    return re.sub(
        r"#[0-9a-f]{6}\b",
        lambda color: f"var(--{colors[color[0]]})" if color[0] in colors else color[0],
        style,
    ).strip("; ")
