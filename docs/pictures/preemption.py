"""The life of a preemption as a sequence: client, scheduler, backend, GPU."""

from svg import SCHEMES, Picture

COLUMNS = ["high-priority process", "scheduler loop", "backend worker", "GPU"]
# (from column, to column, text); a column to itself is a note.
STEPS = [
    (0, 3, "1  writes its ring, rings the doorbell"),
    (3, 1, "2  the loop reads the rings (every 1 to 10 ms; a hint: at once)"),
    (1, 1, "3  a lower queue is on: preempt it"),
    (1, 2, "4  preempt, with its reason"),
    (2, 3, "5  control call"),
    (3, 3, "6  saves the running kernel"),
    (3, 0, "7  runs the high-priority kernels; they finish"),
    (2, 1, "8  preempted"),
    (3, 1, "9  the ring of the process stays empty"),
    (1, 2, "10  resume, with its reason"),
    (2, 3, "11  control call"),
    (3, 3, "12  continues the saved kernel"),
    (2, 1, "13  resumed; its ring was never touched"),
]
TOP, STEP = 62, 34
GPU_BARS = [("offline", 0, 5), ("switch", 5, 6), ("online", 6, 11), ("switch", 11, 12),
            ("offline", 12, 13.4)]


def draw(_arguments):
    height = TOP + STEP * len(STEPS) + 50
    for scheme in SCHEMES:
        picture = Picture(860, height, "The life of a preemption", scheme)
        places = [110, 350, 560, 770]
        for x, name in zip(places, COLUMNS):
            picture.rect(x - 82, 16, 164, 28, "box", "line", 5)
            picture.text(x, 35, name, anchor="middle", bold=True, size=12)
            picture.line([(x, 44), (x, height - 40)], "line")
        for colour, since, until in GPU_BARS:
            picture.rect(places[3] - 5, TOP + STEP * since - 14, 10, STEP * (until - since),
                         colour)
        for place, (start, end, text) in enumerate(STEPS):
            y = TOP + STEP * place + 18
            left, right = places[min(start, end)], places[max(start, end)]
            if start == end:
                width = 12 + 6.6 * len(text)
                x = left - width - 12 if start == 3 else left - width / 2
                picture.rect(x, y - 14, width, 22, "box", "soft", 4)
                picture.text(x + width / 2, y + 1, text, size=12, anchor="middle")
                continue
            picture.line([(places[start], y), (places[end], y)], "ink", arrow=True)
            width = 8 + 6.2 * len(text)
            middle = (left + right) / 2
            picture.rect(middle - width / 2, y - 18, width, 15, "ground")
            picture.text(middle, y - 6, text, size=12, anchor="middle")
        x = 24
        for colour, text in (("offline", "low-priority kernel on the GPU"),
                             ("switch", "save, restore"), ("online", "high-priority kernels")):
            picture.rect(x, height - 26, 11, 11, colour)
            picture.text(x + 16, height - 16, text, "soft", 11)
            x += 40 + 5.7 * len(text)
        picture.write(f"preemption-{scheme}.svg")
