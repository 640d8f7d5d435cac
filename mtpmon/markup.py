"""HTML made of nested calls: text is escaped unless it is markup already, tags are closed."""

from html import escape

_WITHOUT_END = frozenset({"link", "meta"})


class Html(str):
    """Markup: text that must not be escaped again."""

    __slots__ = ()


def h(tag: str, *children: str | None, **attributes: str | None) -> Html:
    """Make an element.

    Args:
        tag: its name.
        children: ``str`` is text and gets escaped, ``Html`` is taken as it is, ``None`` left out.
        attributes: ``class_`` and ``aria_label`` become ``class`` and ``aria-label``; ``None``
            leaves one out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in _WITHOUT_END:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{together(*children)}</{tag}>")


def together(*children: str | None) -> Html:
    """Put markup and text one after the other."""
    return Html(
        "".join(
            child if isinstance(child, Html) else escape(child, quote=False)
            for child in children
            if child is not None
        )
    )
