"""A strict reading of HTML: every tag closed in order, nothing active in it."""

from html.parser import HTMLParser

_VOID = {"br", "meta", "hr", "img", "link", "input", "col"}


class Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open = []
        self.tags = []
        self.attributes = []
        self.text = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def read_html(html):
    """The reader after ``html``; fails on tags out of order and on what could run or load."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert not reader.open
    assert "script" not in reader.tags
    names = {name for name, _ in reader.attributes}
    assert not {name for name in names if name.startswith("on")}
    assert not names & {"src", "href", "xlink:href"}
    return reader
