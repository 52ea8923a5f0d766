"""Checks of the gateway with the official Python clients.

clients.py URL MODEL prints one line of JSON for each check: its name and, if it
failed, its error.
"""

import asyncio
import json
import sys
import traceback

import anthropic
import openai

URL, MODEL = sys.argv[1], sys.argv[2]
openai_client = openai.OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120)
anthropic_client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120)
QUESTION = [{"role": "user", "content": "Why is the first token late?"}]
TOKENS = 6

checks = []


def check(name):
    def add(function):
        checks.append((name, function))
        return function

    return add


def expect(condition, seen):
    if not condition:
        raise AssertionError(f"got {seen!r}")


def expect_error(kinds, call):
    """The client must see one of these errors, and be able to read what it says."""
    try:
        seen = call()
    except kinds as error:
        expect(error.message and isinstance(error.body, dict), error)
        return error
    raise AssertionError(f"no error, got {seen!r}")


@check("openai chat")
def _():
    answer = openai_client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=TOKENS)
    expect(answer.choices[0].message.content, answer)
    expect(answer.choices[0].finish_reason == "length", answer)
    expect(answer.usage.completion_tokens == TOKENS, answer)


@check("openai chat, streamed")
def _():
    stream = openai_client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=TOKENS, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    expect(any(c.choices and c.choices[0].delta.content for c in chunks), chunks)
    expect([c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length", chunks)
    expect(chunks[-1].usage.completion_tokens == TOKENS, chunks)


@check("openai chat, streamed, without usage")
def _():
    chunks = list(openai_client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=TOKENS, stream=True))
    expect(any(c.choices and c.choices[0].delta.content for c in chunks), chunks)
    expect(all(c.choices and c.usage is None for c in chunks), chunks)  # nothing that was not asked for


@check("openai chat with tools")
def _():
    tool = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}}
    talk = [
        *QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    options = {"model": MODEL, "messages": talk, "tools": [tool], "tool_choice": "none", "max_tokens": TOKENS}
    answer = openai_client.chat.completions.create(**options)
    expect(answer.choices[0].finish_reason == "length", answer)
    chunks = list(openai_client.chat.completions.create(**options, stream=True))
    expect(any(c.choices[0].delta.content for c in chunks), chunks)


@check("openai chat, the raw response")
def _():
    raw = openai_client.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION, max_tokens=TOKENS)
    expect(raw.status_code == 200 and raw.headers["x-warmpath-replica"] and raw.headers["x-request-id"], raw.headers)
    expect(raw.parse().usage.completion_tokens == TOKENS, raw.text)
    with openai_client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=QUESTION, max_tokens=TOKENS, stream=True
    ) as streamed:
        lines = list(streamed.iter_lines())
    expect(streamed.headers["content-type"].startswith("text/event-stream") and "data: [DONE]" in lines, lines)


@check("openai chat, given up in the middle")
def _():
    stream = openai_client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=400, stream=True)
    next(iter(stream))
    stream.close()
    answer = openai_client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=TOKENS)
    expect(answer.usage.completion_tokens == TOKENS, answer)


@check("openai, several at once, some given up")
def _():
    async def one(client, n):
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=20, stream=True)
        chunks = []
        async for chunk in stream:
            chunks.append(chunk)
            if n % 2:
                await stream.close()
                return None
        return chunks[-1].choices[0].finish_reason

    async def several():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(one(client, n) for n in range(8)))

    ends = asyncio.run(several())
    expect(ends == ["length", None] * 4, ends)


@check("openai completions")
def _():
    answer = openai_client.completions.create(model=MODEL, prompt="The first token", max_tokens=TOKENS)
    expect(answer.choices[0].text, answer)
    expect(answer.usage.completion_tokens == TOKENS, answer)


@check("openai completions, streamed")
def _():
    chunks = list(openai_client.completions.create(model=MODEL, prompt="The first token", max_tokens=TOKENS, stream=True))
    expect("".join(c.choices[0].text for c in chunks), chunks)


@check("openai responses")
def _():
    answer = openai_client.responses.create(model=MODEL, input="Why is the first token late?", max_output_tokens=TOKENS)
    expect(answer.output_text, answer)
    expect(answer.usage.output_tokens == TOKENS, answer)


@check("openai responses, streamed")
def _():
    events = list(openai_client.responses.create(model=MODEL, input="Why?", max_output_tokens=TOKENS, stream=True))
    expect(any(e.type == "response.output_text.delta" for e in events), events)
    expect(events[-1].type in ("response.completed", "response.incomplete"), events[-1])


@check("openai models")
def _():
    models = openai_client.models.list()
    expect([m.id for m in models] == [MODEL], models)
    expect(openai_client.models.retrieve(MODEL).id == MODEL, models)


@check("openai embeddings of a model without them")
def _():
    try:
        seen = openai_client.embeddings.create(model=MODEL, input="text")
    except (openai.NotFoundError, openai.BadRequestError):
        return
    raise AssertionError(f"no error, got {seen!r}")


@check("openai, an unknown model")
def _():
    error = expect_error(
        openai.NotFoundError, lambda: openai_client.chat.completions.create(model="nobody", messages=QUESTION, max_tokens=TOKENS)
    )
    expect(error.code == "model_not_found" and error.param == "model" and error.type, error.body)


@check("openai, an unknown model, streamed")
def _():
    expect_error(
        openai.NotFoundError,
        lambda: list(openai_client.chat.completions.create(model="nobody", messages=QUESTION, max_tokens=TOKENS, stream=True)),
    )


@check("openai, a request that the engine refuses")
def _():
    expect_error(
        openai.BadRequestError, lambda: openai_client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=-1)
    )


@check("anthropic messages")
def _():
    answer = anthropic_client.messages.create(model=MODEL, messages=QUESTION, max_tokens=TOKENS)
    expect(answer.content[0].text, answer)
    expect(answer.stop_reason == "max_tokens" and answer.usage.output_tokens == TOKENS, answer)


@check("anthropic messages, streamed")
def _():
    events = list(anthropic_client.messages.create(model=MODEL, messages=QUESTION, max_tokens=TOKENS, stream=True))
    expect(any(e.type == "content_block_delta" and e.delta.text for e in events), events)
    expect(events[0].type == "message_start" and events[-1].type == "message_stop", events)


@check("anthropic, an unknown model")
def _():
    expect_error(
        anthropic.NotFoundError, lambda: anthropic_client.messages.create(model="nobody", messages=QUESTION, max_tokens=TOKENS)
    )


for name, function in checks:
    try:
        function()
        print(json.dumps({"name": name}), flush=True)
    except Exception:
        print(json.dumps({"name": name, "error": traceback.format_exc(limit=-3)}), flush=True)
