"""The crates and which links which, from `cargo metadata`."""

import json
import subprocess
from pathlib import Path

from svg import SCHEMES, Picture

ROOT = Path(__file__).resolve().parents[2]
# Where each crate stands: the middle of its box, and its row.
PLACES = {
    "cli": (320, 0), "daemon": (200, 1), "bench": (440, 1), "agent": (85, 2), "device": (222, 2),
    "sim": (490, 2), "wire": (155, 3), "fields": (410, 3), "kfd": (85, 4), "core": (300, 4),
}
# Crates that only the tests and the project's own commands use.
TOOLS = ["stage", "emu", "fuzz", "kfd-check", "xtask"]
BOX_WIDTH, BOX_HEIGHT, ROW = 122, 44, 84


def read():
    """For each crate: the crates that it links, and the programs and libraries it makes."""
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
    packages = json.loads(output)["packages"]
    short = {package["name"]: package["name"].removeprefix("gpreempt-") for package in packages}
    short["gpreempt"] = "agent"
    links, makes = {}, {}
    for package in packages:
        name = Path(package["manifest_path"]).parent.name
        short[package["name"]] = name
    for package in packages:
        name = short[package["name"]]
        links[name] = {short[it["name"]] for it in package["dependencies"]
                       if it["name"] in short and it["kind"] is None}
        made = [it["name"] for it in package["targets"] if "bin" in it["kind"]]
        made += ["lib" + it["name"] + ".so" for it in package["targets"]
                 if "cdylib" in it["kind"]]
        makes[name] = made
    return links, makes


def reached(links, name):
    """Everything that a crate links, by way of others too."""
    found = set()
    rest = list(links[name])
    while rest:
        other = rest.pop()
        if other not in found:
            found.add(other)
            rest.extend(links[other])
    return found


def without_shortcuts(links):
    """The links that do not follow from others."""
    return {
        name: {to for to in direct
               if not any(to in reached(links, other) for other in direct - {to})}
        for name, direct in links.items()
    }


def draw_crate(picture, name, made, x, y):
    picture.rect(x - BOX_WIDTH / 2, y, BOX_WIDTH, BOX_HEIGHT, "box", "online", 5)
    picture.text(x, y + (18 if made else 27), name, anchor="middle", bold=True)
    if made:
        picture.text(x, y + 34, ", ".join(made), "soft", 10.5, "middle", mono=True)


def draw(_arguments):
    links, makes = read()
    if missing := set(links) - set(PLACES) - set(TOOLS):
        raise SystemExit(f"crates.py gives no place to: {', '.join(sorted(missing))}")
    product = {name: links[name] for name in PLACES}
    direct = without_shortcuts(product)
    for scheme in SCHEMES:
        height = ROW * 5 + 44
        picture = Picture(860, height, "The crates and which crate links which", scheme)
        centre = {name: (x, 24 + ROW * row) for name, (x, row) in PLACES.items()}
        for name, others in sorted(direct.items()):
            for to in sorted(others):
                (x, y), (end, below) = centre[name], centre[to]
                shift = max(-50, min(50, (end - x) * 0.25))
                picture.line([(x + shift, y + BOX_HEIGHT), (end - shift, below)], "soft",
                             arrow=True)
        for name, (x, y) in centre.items():
            draw_crate(picture, name, makes[name], x, y)
        picture.line([(572, 24), (572, height - 50)], "line")
        picture.text(588, 38, "Tests and tools, with what they link", "soft", 12)
        for row, name in enumerate(TOOLS):
            y = 52 + 66 * row
            picture.rect(588, y, 112, BOX_HEIGHT, "ground", "soft", 5, True)
            made = [it for it in makes[name] if it != name]
            picture.text(644, y + (18 if made else 27), name, anchor="middle", bold=True)
            if made:
                size = 10.5 if len(made[0]) < 15 else 9
                picture.text(644, y + 34, made[0], "soft", size, "middle", mono=True)
            used = sorted(links[name])
            for at, first in enumerate(range(0, len(used), 3)):
                text = ", ".join(used[first:first + 3])
                picture.text(712, y + 18 + 16 * at, text, "soft", 11)
        picture.text(24, height - 14, "An arrow points at a crate that is linked; links that"
                     " follow from others are left out.", "soft", 11)
        picture.write(f"crates-{scheme}.svg")
