"""What bytes a vocabulary entry stands for.

Owns the two spellings of bytes in vocabularies: byte-level BPE's printable alphabet and SentencePiece's `<0xE2>`.
Never knows a tokenizer's other settings.
"""

from __future__ import annotations

import re

_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte (Radford et al. 2019): printable Latin-1 stands for itself, the other
    bytes for the characters from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF_CHARACTER = _byte_level_alphabet()


def bytes_of_token(token: str, is_byte_level: bool) -> bytes:
    """The bytes `token` stands for; a byte-level token with a foreign character is its own text, as in `tokenizers`."""
    if is_byte_level:
        if all(character in BYTE_OF_CHARACTER for character in token):
            return bytes(BYTE_OF_CHARACTER[character] for character in token)
        return token.encode()
    fallback = _BYTE_FALLBACK.fullmatch(token)
    if fallback:
        return bytes([int(fallback[1], 16)])
    return token.replace("▁", " ").encode()
