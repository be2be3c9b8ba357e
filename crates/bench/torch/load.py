"""Unmodified PyTorch programs as loads: inference on a schedule, training without a pause.

They print the same lines of JSON as gpreempt-load, so that the runner reads both alike. A request
counts from when it was due, also when the one before it was late.
"""

import argparse
import json
import os
import queue
import sys
import threading
import time

import torch
from torch import nn


class Bottleneck(nn.Module):
    """One block of ResNet-50."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = width * 4

        def convolution(a, b, size, step):
            return nn.Sequential(nn.Conv2d(a, b, size, step, size // 2, bias=False),
                                 nn.BatchNorm2d(b))

        self.body = nn.Sequential(convolution(inputs, width, 1, 1), nn.ReLU(inplace=True),
                                  convolution(width, width, 3, stride), nn.ReLU(inplace=True),
                                  convolution(width, outputs, 1, 1))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50():
    """ResNet-50 with random weights: what it computes does not matter, how much does."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(count):
            layers.append(Bottleneck(inputs, width, stride if index == 0 else 1))
            inputs = width * 4
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)]
    return nn.Sequential(*layers)


def transformer_layers(count, width):
    return nn.ModuleList(nn.ModuleDict({
        "before": nn.LayerNorm(width), "three": nn.Linear(width, 3 * width),
        "out": nn.Linear(width, width), "after": nn.LayerNorm(width),
        "wide": nn.Linear(width, 4 * width), "narrow": nn.Linear(4 * width, width),
    }) for _ in range(count))


class Decoder(nn.Module):
    """A small transformer that makes one token after the other, with its keys and values kept."""

    WIDTH, HEADS, LAYERS, LONGEST, WORDS = 768, 12, 8, 128, 8192

    def __init__(self):
        super().__init__()
        width = self.WIDTH
        self.words = nn.Embedding(self.WORDS, width)
        self.layers = transformer_layers(self.LAYERS, width)
        self.last = nn.Linear(width, self.WORDS)

    def forward(self, token, place, cache):
        """The next token; `place` is a tensor, so that a graph can be replayed at each place."""
        heads, size = self.HEADS, self.WIDTH // self.HEADS
        mask = torch.arange(self.LONGEST, device=token.device) <= place
        x = self.words(token)
        for layer, (keys, values) in zip(self.layers, cache):
            q, k, v = layer["three"](layer["before"](x)).view(3, heads, size)
            keys.index_copy_(1, place, k.unsqueeze(1))
            values.index_copy_(1, place, v.unsqueeze(1))
            weights = torch.einsum("hs,hls->hl", q, keys) / size ** 0.5
            weights = weights.masked_fill(~mask, float("-inf")).softmax(-1)
            x = x + layer["out"](torch.einsum("hl,hls->hs", weights, values).reshape(1, -1))
            x = x + layer["narrow"](torch.relu(layer["wide"](layer["after"](x))))
        return self.last(x).argmax(-1)

    def cache(self):
        shape = (self.HEADS, self.LONGEST, self.WIDTH // self.HEADS)
        return [(torch.zeros(shape, device="cuda").half(), torch.zeros(shape, device="cuda").half())
                for _ in range(self.LAYERS)]


class Transformer(nn.Module):
    """The model of an LLM server: it reads whole prompts, and writes one token after the other.

    The prompts of a batch have the same length, so that their next tokens are one CUDA graph.
    """

    LAYERS, WIDTH, HEADS, WORDS, BATCH, PROMPT, TOKENS, LONGEST = 16, 2048, 16, 8192, 4, 96, 12, 128

    def __init__(self):
        super().__init__()
        width = self.WIDTH
        self.words = nn.Embedding(self.WORDS, width)
        self.layers = transformer_layers(self.LAYERS, width)
        self.last = nn.Linear(width, self.WORDS)

    def forward(self, tokens, cache=None, place=None):
        """Whole sequences, or one more token of each if there is a cache."""
        batch, length = tokens.shape
        x = self.words(tokens)
        for index, layer in enumerate(self.layers):
            parts = layer["three"](layer["before"](x))
            parts = parts.view(batch, length, 3, self.HEADS, self.WIDTH // self.HEADS)
            query, key, value = (parts[:, :, i].transpose(1, 2) for i in range(3))
            mask = None
            if cache is not None:
                keys, values = cache[index]
                keys.index_copy_(2, place, key)
                values.index_copy_(2, place, value)
                key, value = keys, values
                mask = (torch.arange(self.LONGEST, device=x.device) <= place).view(1, 1, 1, -1)
            mixed = nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=cache is None)
            x = x + layer["out"](mixed.transpose(1, 2).reshape(batch, length, self.WIDTH))
            x = x + layer["narrow"](torch.relu(layer["wide"](layer["after"](x))))
        return self.last(x)

    def cache(self):
        shape = (self.BATCH, self.HEADS, self.LONGEST, self.WIDTH // self.HEADS)
        return [tuple(torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
                for _ in range(self.LAYERS)]


def captured(function):
    """The same work as one CUDA graph."""
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


class Server:
    """Serves requests to an LLM: an eager prefill, then tokens, each fetched by the program."""

    def __init__(self, how):
        model = Transformer().cuda().bfloat16().eval()
        cache = model.cache()
        prompt = torch.randint(0, model.WORDS, (model.BATCH, model.PROMPT), device="cuda")
        token = torch.zeros(model.BATCH, 1, dtype=torch.long, device="cuda")
        place = torch.full((1,), model.PROMPT, dtype=torch.long, device="cuda")
        step = lambda: model(token, cache, place).argmax(-1)
        # A graph does not own the tensors that it reads.
        self.tensors = (cache, token, place)
        self.prefill = lambda: model(prompt)[0, -1].argmax().item()
        self.next_token = lambda: step()[0, 0].item()
        self.tokens, self.parts = model.TOKENS, {}
        if how == "graph":
            graph, result = captured(step)

            def replay():
                graph.replay()
                return result[0, 0].item()
            self.next_token = replay

    def timed(self, part, function):
        """What a function returns; how long it took counts for that part of the requests."""
        begin = time.monotonic_ns()
        result = function()
        self.parts.setdefault(part, []).append((time.monotonic_ns() - begin) / 1e3)
        return result

    def __call__(self):
        total = self.timed("first_token", self.prefill)
        for _ in range(self.tokens):
            total = (total * 31 + self.timed("token", self.next_token)) % 1_000_003
        return total


def request(kind):
    """A function that serves one request and returns a number that must always be the same."""
    name, _, how = kind.partition("-")
    if name == "serve":
        return Server(how)
    if name == "resnet":
        model = resnet50().cuda().half().eval().to(memory_format=torch.channels_last)
        picture = torch.randn(1, 3, 224, 224, device="cuda").half()
        picture = picture.to(memory_format=torch.channels_last)
        if how == "graph":
            graph, result = captured(lambda: model(picture).argmax())

            def serve():
                graph.replay()
                return result.item()
            return serve
        return lambda: model(picture).argmax().item()
    model = Decoder().cuda().half().eval()
    cache, token = model.cache(), torch.zeros(1, dtype=torch.long, device="cuda")
    place = torch.zeros(1, dtype=torch.long, device="cuda")
    step = lambda: model(token, place, cache)
    graph, result = captured(step) if how == "graph" else (None, None)
    # One by one from Python, a token takes several times as long.
    tokens = 16 if graph else 3

    def decode():
        token.zero_()
        total = 0
        for index in range(tokens):
            place.fill_(index)
            if graph:
                graph.replay()
                word = result
            else:
                word = step()
            token.copy_(word)
            total = (total * 31 + word.item()) % 1_000_003
        return total
    return decode


class Rounds:
    """Orders from stdin, one line of JSON each; the program leaves when they end.

    A round is prepared, begins at a moment that is the same for all programs, and ends by itself
    or when it is told to. Between rounds nothing of this program is on the device.
    """

    PATIENCE = 120

    def __init__(self):
        self.orders, self.ended, self.is_over = queue.Queue(), 0, False
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in sys.stdin:
            order = json.loads(line)
            if order["do"] == "end":
                self.ended = max(self.ended, order["round"])
            else:
                self.orders.put(order)
        self.is_over = True
        self.orders.put(None)

    def __iter__(self):
        """Each round with its number, its length in seconds and its beginning."""
        while (order := self.orders.get()) is not None:
            if order["do"] != "prepare":
                leave(f"{order} comes too early")
            say({"line": "prepared", "round": order["round"]})
            begin = self.orders.get(timeout=self.PATIENCE)
            if begin is None:
                return
            yield Round(self, order["round"], order["seconds"], begin["at_ns"])


class Round:
    """One measurement."""

    def __init__(self, rounds, number, seconds, begin_ns):
        self.rounds, self.number, self.seconds, self.begin_ns = rounds, number, seconds, begin_ns

    def is_over(self):
        return self.rounds is not None and (
            self.rounds.is_over or self.rounds.ended >= self.number)

    def wait(self):
        """Until the beginning; the last of it looking at the clock."""
        while (left := self.begin_ns - time.monotonic_ns()) > 0 and not self.is_over():
            time.sleep(min(0.02, max(0, left - 1_000_000) / 1e9))

    def last(self, line):
        number = {"round": self.number} if self.rounds else {}
        say({"line": "final"} | number | line)


def rounds(arguments):
    """Says that everything is ready, and gives the measurements to be made."""
    say({"line": "ready", "load": arguments.role, "pid": os.getpid(), "kernel": None})
    if arguments.rounds:
        yield from Rounds()
        return
    deadline = time.monotonic() + 120
    while arguments.wait_file and not os.path.exists(arguments.wait_file):
        if time.monotonic() > deadline:
            sys.exit(f"{arguments.wait_file} did not appear within 120 s")
        time.sleep(0.001)
    yield Round(None, 0, arguments.seconds, time.monotonic_ns())


def same_algorithms():
    """A trial at the start would choose by chance, and programs would not do the same work."""
    torch.backends.cudnn.benchmark = False


def leave(why):
    """At once: the thread that reads orders sits in stdin, and an orderly end can wait for it."""
    print(why, file=sys.stderr, flush=True)
    os._exit(1)


def online(arguments):
    """Requests that are due at fixed times, whatever became of those before."""
    same_algorithms()
    with torch.inference_mode():
        serve = request(arguments.kind)
        for _ in range(20):
            reference = serve()
        for each in rounds(arguments):
            answer(arguments, each, serve, reference)


def answer(arguments, each, serve, reference):
    """The requests of one measurement."""
    start = each.begin_ns
    first = start + arguments.warmup_ms * 1_000_000
    end = first + each.seconds * 1_000_000_000
    rows, wrong, parts = [], 0, getattr(serve, "parts", {})
    each.wait()
    is_counting = False
    for due in due_times(arguments, start, end):
        time.sleep(max(0, due - time.monotonic_ns()) / 1e9)
        if each.is_over():
            break
        began = time.monotonic_ns()
        if began >= end:
            if due >= first:
                rows.append((due, began, began, 0))
            continue
        if due >= first and not is_counting:
            is_counting = True
            parts.clear()
        wrong += serve() != reference
        if due >= first:
            rows.append((due, began, time.monotonic_ns(), 1))
    if arguments.raw:
        with open(arguments.raw, "w") as out:
            out.write("due_ns,begin_ns,end_ns,served\n")
            out.writelines(",".join(map(str, row)) + "\n" for row in rows)
    each.last({"from_ns": first, "until_ns": end, "n": len(rows), "wrong": wrong,
               "service_us": quantiles([(ended - began) / 1e3 for _, began, ended, served in rows
                                        if served]),
               "parts_us": {part: quantiles(times) for part, times in parts.items()}})
    if wrong:
        leave(f"{wrong} results are not those of the first request")


def due_times(arguments, start, end):
    """When requests are due: at random times of a file, or regularly."""
    if not arguments.trace:
        return range(start, end, arguments.every_us * 1_000)
    with open(arguments.trace) as times:
        return [due for due in (start + int(line) for line in times) if due < end]


def quantiles(lengths):
    """What a reader wants to know about them."""
    if not lengths:
        return None
    lengths = sorted(lengths)
    at = lambda part: lengths[min(len(lengths) - 1, int(len(lengths) * part))]
    return {"count": len(lengths), "p50": at(0.5), "p99": at(0.99), "max": lengths[-1]}


def offline(arguments):
    """Training steps, one after the other."""
    same_algorithms()
    step = transformer_step() if arguments.kind.startswith("serve") else resnet_step()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    for each in rounds(arguments):
        train(each, step)


def transformer_step():
    """One step of training the model of the server."""
    model = Transformer().cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, model.WORDS, (16, 256), device="cuda")

    def step():
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return step


def resnet_step():
    model = resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pictures = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (64,), device="cuda")

    def step():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return step


def train(each, step):
    """The steps of one measurement. At its end nothing is left on the device."""
    each.wait()
    begin = since = time.monotonic_ns()
    done, end = 0, begin + each.seconds * 1_000_000_000
    while time.monotonic_ns() < end and not each.is_over():
        step()
        done += 1
        if done % 2 == 0:
            torch.cuda.synchronize()
            now = time.monotonic_ns()
            say({"line": "rate", "from_ns": since, "until_ns": now, "count": 2})
            since = now
    torch.cuda.synchronize()
    each.last({"unit": "steps", "from_ns": begin, "until_ns": time.monotonic_ns(), "total": done})


def say(line):
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=("lc", "be"))
    parser.add_argument("--kind", default="resnet",
                        choices=("resnet", "resnet-graph", "decode", "decode-graph",
                                 "serve-graph", "serve-eager"))
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--warmup-ms", type=int, default=500)
    parser.add_argument("--every-us", type=int, default=50_000)
    parser.add_argument("--trace", help="a file with the time of each request, in ns")
    parser.add_argument("--rounds", action="store_true",
                        help="stay for several measurements; orders come on stdin")
    parser.add_argument("--wait-file", help="begin only when this file exists")
    parser.add_argument("--raw", help="write every request that counts")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    (online if arguments.role == "lc" else offline)(arguments)


if __name__ == "__main__":
    main()
