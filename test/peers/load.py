#!/usr/bin/env python3
"""Shared-prefix load through several gateways in turn: TTFT, and the share of prompt tokens that the engine had cached.

Each run sends --groups system prompts x --questions questions in random order, --concurrency at a time, through one URL, with
prompts never used before. TTFT ends at the first chunk with content. Standard library only.
  load.py --model smol4 a=http://127.0.0.1:9191 b=http://127.0.0.1:9180
"""
import argparse
import json
import random
import statistics
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

WORDS = "cluster fault schedule network storage cache model replica token prefix request latency node volume image queue batch pod".split()


def ask(url, model, system, question, max_tokens):
    """Returns (seconds to first token, prompt tokens, cached tokens); raises if the answer is not whole."""
    body = {"model": model, "stream": True, "temperature": 0, "max_tokens": max_tokens, "stream_options": {"include_usage": True},
            "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}]}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    begun, first, usage = time.perf_counter(), None, None
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                if first is None or usage is None:
                    raise RuntimeError("an answer without content or usage")
                details = usage.get("prompt_tokens_details") or {}
                return first, usage["prompt_tokens"], details.get("cached_tokens") or 0
            event = json.loads(data)
            if "error" in event:
                raise RuntimeError(event["error"])
            usage = event.get("usage") or usage
            if first is None and any(c.get("delta", {}).get("content") for c in event.get("choices") or []):
                first = time.perf_counter() - begun
    raise RuntimeError("the stream was cut off")


def run(name, url, args, seed):
    rnd = random.Random(seed)
    systems = [" ".join(rnd.choices(WORDS, k=args.words)) for _ in range(args.groups)]
    jobs = [(g, q) for g in range(args.groups) for q in range(args.questions)]
    rnd.shuffle(jobs)

    def one(job):
        try:
            return ask(url, args.model, systems[job[0]], f"question {job[1]} of group {job[0]} in run {seed}", args.max_tokens)
        except Exception as error:  # counted, and the first one shown
            return error

    with ThreadPoolExecutor(args.concurrency) as pool:
        results = list(pool.map(one, jobs))
    good = [r for r in results if not isinstance(r, Exception)]
    bad = [r for r in results if isinstance(r, Exception)]
    times = sorted(r[0] * 1000 for r in good) or [float("nan")]
    row = {"name": name, "ok": len(good), "failed": len(bad), "mean_ms": round(statistics.mean(times)),
           "p95_ms": round(times[min(len(times) - 1, int(len(times) * 0.95))]),
           "cached": round(sum(r[2] for r in good) / max(1, sum(r[1] for r in good)), 3)}
    print(json.dumps(row), *bad[:1], flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gateways", nargs="+", metavar="NAME=URL")
    parser.add_argument("--model", default="smol4")
    for flag, value in {"groups": 8, "questions": 8, "concurrency": 3, "words": 900, "max-tokens": 4, "rounds": 3, "seed": 1}.items():
        parser.add_argument("--" + flag, type=int, default=value)
    args = parser.parse_args()
    rows = {}
    for round_ in range(args.rounds):
        for i, gateway in enumerate(args.gateways):
            name, url = gateway.split("=", 1)
            rows.setdefault(name, []).append(run(name, url.rstrip("/"), args, args.seed * 100000 + round_ * 1000 + i))
    print(f"\n{'gateway':14} {'failed':>6} {'cached':>7} {'mean':>6} {'p95':>6}   medians over {args.rounds} rounds")
    for name, mine in rows.items():
        median = {key: statistics.median(r[key] for r in mine) for key in ("cached", "mean_ms", "p95_ms")}
        print(f"{name:14} {sum(r['failed'] for r in mine):6} {median['cached']:7.3f} {median['mean_ms']:6.0f} {median['p95_ms']:6.0f}")


if __name__ == "__main__":
    main()
