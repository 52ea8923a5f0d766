#!/usr/bin/env python3
"""Measures a replica's pace and fits the step time that mockvllm's preset has.

  "$VLLM_HOME/venv/bin/python" test/vllm/pace.py [URL]

Prompts of u new tokens behind c cached ones, alone, take
    overhead + StepBase + a*u + b*(u*c + u*u/2)
until their first token, and n answers at once get a token each in
StepBase + d*n. The smallest of several times counts, since other processes can
only add to it. The model is smol4; URL is http://127.0.0.1:8101 if none is given.
"""
import json
import random
import sys
import threading
import time
import urllib.request

import numpy

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8101"


def ids(n):
    return [random.randrange(1000, 41000) for _ in range(n)]


def times(prompt, tokens=1):
    """Returns when each token came, in seconds from the request."""
    body = {"model": "smol4", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    began = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        return [time.perf_counter() - began for line in answer if line.startswith(b"data: {")]


def prefill(u, held):
    return min(times(held + ids(u))[0] for _ in range(7))


def decode(n, tokens=40):
    """Returns the time between tokens of n answers at once."""
    steps, lock = [], threading.Lock()

    def run():
        at = times(ids(8), tokens)
        with lock:
            steps.append((at[-1] - at[tokens // 4]) / (len(at) - 1 - tokens // 4))

    threads = [threading.Thread(target=run) for _ in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return min(steps)


# One step each, and hits of whole blocks.
pairs, ttft = [], []
for c in (0, 1024, 2048, 4096):
    held = ids(c)
    times(held + ids(1))  # a prompt's last token is never a hit
    for u in (128, 256, 512, 1024, 2048):
        pairs.append((u, c))
        ttft.append(prefill(u, held))
ttft = numpy.array(ttft)
terms = numpy.array([[1, u, u * c + u * u / 2] for u, c in pairs])
# Relative errors count, or the longest prompts alone would decide.
intercept, a, b = numpy.linalg.lstsq(terms / ttft[:, None], numpy.ones(len(pairs)), rcond=None)[0]
counts = [1, 4, 16, 32]
d, base = numpy.polyfit(counts, [min(decode(n) for _ in range(3)) for n in counts], 1)
for (u, c), t, fit in zip(pairs, ttft, terms @ [intercept, a, b]):
    print(f"u {u:5} c {c:5}  measured {1000 * t:7.1f} ms  fit {1000 * fit:7.1f} ms")
print(f"StepBase          {1000 * base:.2f} ms")
print(f"PrefillPerToken   {1e6 * a:.0f} µs")
print(f"AttentionPerPair  {1e9 * b:.1f} ns")
print(f"DecodePerSeq      {1e6 * d:.0f} µs")
print(f"first token of no work at all {1000 * intercept:.1f} ms: StepBase and what the API server adds")
