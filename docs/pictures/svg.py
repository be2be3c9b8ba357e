"""A small writer of SVG pictures, and the colours of the light and the dark scheme."""

from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent
SANS = "-apple-system,'Segoe UI','Noto Sans',Helvetica,Arial,sans-serif"
MONO = "ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',monospace"

SCHEMES = {
    "light": {
        "ground": "#ffffff", "ink": "#1f2328", "soft": "#59636e", "line": "#d1d9e0",
        "box": "#f6f8fa", "online": "#0969da", "hold": "#a5d0ff", "offline": "#7d8590",
        "switch": "#bc4c00", "wait": "#ffdcd7", "good": "#1a7f37", "bad": "#cf222e",
    },
    "dark": {
        "ground": "#0d1117", "ink": "#e6edf3", "soft": "#9198a1", "line": "#3d444d",
        "box": "#151b23", "online": "#4493f8", "hold": "#1d4478", "offline": "#8b949e",
        "switch": "#f0883e", "wait": "#4b2326", "good": "#3fb950", "bad": "#f85149",
    },
}


def number(value):
    """A coordinate in as few letters as a tenth of a pixel needs."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


class Picture:
    """The elements of one picture in one colour scheme."""

    def __init__(self, width, height, title, scheme):
        self.width, self.height, self.title = width, height, title
        self.colours = SCHEMES[scheme]
        self.elements = []

    def colour(self, name):
        return self.colours.get(name, name)

    def rect(self, x, y, width, height, fill, stroke=None, radius=0, dashed=False):
        border = f' stroke="{self.colour(stroke)}"' if stroke else ""
        border += ' stroke-dasharray="4 3"' if dashed else ""
        corner = f' rx="{radius}"' if radius else ""
        place = " ".join(
            f'{key}="{number(value)}"'
            for key, value in (("x", x), ("y", y), ("width", width), ("height", height))
        )
        self.elements.append(f'<rect {place}{corner} fill="{self.colour(fill)}"{border}/>')

    def bars(self, spans, fill):
        """Rectangles of one colour as one path: x, y, width, height each."""
        parts = [
            f"M{number(x)} {number(y)}h{number(max(w, 0.3))}v{number(h)}h-{number(max(w, 0.3))}z"
            for x, y, w, h in spans
        ]
        if parts:
            self.elements.append(f'<path fill="{self.colour(fill)}" d="{"".join(parts)}"/>')

    def line(self, points, stroke, width=1, arrow=False, dashed=False):
        path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)
        more = ' stroke-dasharray="3 3"' if dashed else ""
        self.elements.append(
            f'<path d="{path}" fill="none" stroke="{self.colour(stroke)}"'
            f' stroke-width="{width}"{more}/>'
        )
        if arrow:
            self.arrow_head(points[-2], points[-1], stroke)

    def arrow_head(self, start, end, fill, size=6):
        along = (end[0] - start[0], end[1] - start[1])
        length = (along[0] ** 2 + along[1] ** 2) ** 0.5 or 1
        x, y = along[0] / length, along[1] / length
        base = (end[0] - x * size, end[1] - y * size)
        half = size * 0.45
        corners = [end, (base[0] - y * half, base[1] + x * half),
                   (base[0] + y * half, base[1] - x * half)]
        path = "M" + "L".join(f"{number(a)} {number(b)}" for a, b in corners) + "z"
        self.elements.append(f'<path d="{path}" fill="{self.colour(fill)}"/>')

    def text(self, x, y, text, fill="ink", size=13, anchor="start", bold=False, mono=False):
        more = f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += ' font-weight="600"' if bold else ""
        more += f' font-family="{MONO}"' if mono else ""
        self.elements.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="{size}"'
            f' fill="{self.colour(fill)}"{more} xml:space="preserve">{escape(text)}</text>'
        )

    def heading(self, x, y, parts):
        """Bold text in several colours: (text, colour) each."""
        spans = "".join(
            f'<tspan fill="{self.colour(fill)}">{escape(text)}</tspan>' for text, fill in parts)
        self.elements.append(
            f'<text x="{number(x)}" y="{number(y)}" font-size="14" font-weight="600"'
            f' xml:space="preserve">{spans}</text>'
        )

    def write(self, name):
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}" role="img" font-family="{SANS}">'
            f"<title>{escape(self.title)}</title>"
        )
        ground = (
            f'<rect width="{self.width}" height="{self.height}" rx="6"'
            f' fill="{self.colour("ground")}"/>'
        )
        text = "\n".join([head, ground, *self.elements, "</svg>"]) + "\n"
        (FOLDER / name).write_text(text, encoding="utf-8")
