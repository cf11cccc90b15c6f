"""HTML whose texts are escaped unless they are markup already: what a user called an arm can never become a tag."""

from collections.abc import Iterable, Sequence
from html import escape

VOID = ("meta", "link", "br", "hr")


class Markup(str):
    """Text that is HTML already; only the functions of this module and `inline_svg` make it."""


def element(tag: str, /, *children: str, **attributes: str) -> Markup:
    """`<tag ...>children</tag>`; children that are no `Markup` are escaped, so are the attributes' values.

    Attributes are written as keyword arguments, `class_` for `class`, `aria_label` for `aria-label`.
    """
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    if tag in VOID:
        return Markup(f"<{tag}{given}>")
    return Markup(f"<{tag}{given}>{joined(children)}</{tag}>")


def joined(parts: Iterable[str], between: str = "") -> Markup:
    """The parts one after the other, escaped where they are no markup."""
    return Markup(escape(between).join(part if isinstance(part, Markup) else escape(part) for part in parts))


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], caption: str, *, strong: Sequence[int] = (), left: int = 1
) -> Markup:
    """A table in a box of its own that scrolls where the screen is narrow; the first column heads the rows.

    `strong`: numbers of the rows in bold. `left`: so many columns from the left hold text, the others numbers.
    """
    head = element(
        "tr", *(element("th", name, scope="col", class_=_side(at, left)) for at, name in enumerate(headings))
    )
    body = [
        element(
            "tr", *(_cell(at, text, left) for at, text in enumerate(row)), class_="best" if number in strong else ""
        )
        for number, row in enumerate(rows)
    ]
    whole = element("table", element("caption", caption), element("thead", head), element("tbody", *body))
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(column: int, text: str, left: int) -> Markup:
    if column == 0:
        return element("th", text, scope="row", class_="text")
    return element("td", text, class_=_side(column, left))


def _side(column: int, left: int) -> str:
    return "text" if column < left else "number"


def section(identity: str, heading: str, *children: str) -> Markup:
    """A section with its heading; empty where it has no content."""
    content = [child for child in children if child]
    return element("section", element("h2", heading), *content, id=identity) if content else Markup()
