"""A small LLM inference engine, written to be read.

Rooms: `model` computes, `kv` keeps keys and values, `scheduling` decides who runs next, `text` turns
tokens into text and back, `telemetry` says what happened, `serving` takes requests in. `engine.engine`
puts one step together. Nothing in here knows about the web page (`viz`).
"""
