"""Tokenizers from Hugging Face folders: ids, specials, chat templates, and what they refuse."""

from __future__ import annotations

import json
import threading
from datetime import datetime

import pytest
from transformers import AutoTokenizer

from engine.text.tokenizer import TextError, Tokenizer
from tests import tiny_models
from tests.unit.text import tokenizers_on_disk as on_disk

HELLO = [{"role": "user", "content": "Hello"}]
DATED_TEMPLATE = (
    "{{ bos_token }}{%- if not date_string is defined %}{%- if strftime_now is defined %}"
    '{%- set date_string = strftime_now("%d %b %Y") %}{%- else %}{%- set date_string = "26 Jul 2024" %}'
    "{%- endif %}{%- endif %}Today: {{ date_string }}\n"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}<|eot|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
STRICT_TEMPLATE = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant'] %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{{ m.content }}{% endfor %}"
)


@pytest.fixture
def dated(tmp_path) -> Tokenizer:
    on_disk.byte_level(tmp_path, chat_template=DATED_TEMPLATE)
    return Tokenizer.load(tmp_path, today=datetime(2031, 5, 9, 23, 59))


def test_ids_are_those_of_transformers(tmp_path):
    for build in (on_disk.byte_level, on_disk.llama2_style, on_disk.metaspace):
        folder = build(tmp_path / build.__name__)
        ours, theirs = Tokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
        for text in (on_disk.TEXT, "", " ", "<|eot|> and </s>"):
            for add in (True, False):
                ids = ours.encode(text, add_special_tokens=add)
                assert ids == theirs(text, add_special_tokens=add)["input_ids"]
                for skip in (True, False):
                    expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                    assert ours.decode(ids, skip_special_tokens=skip) == expected


def test_the_vocabulary_ends_at_the_highest_id(tmp_path):
    """A gap in the ids makes the number of tokens less than what the model's rows need."""
    on_disk.byte_level(tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    before = Tokenizer.load(tmp_path).vocab_size
    last = max(content["model"]["vocab"], key=content["model"]["vocab"].get)
    content["model"]["vocab"]["zzzz"] = content["model"]["vocab"][last] + 100
    path.write_text(json.dumps(content))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.vocab_size == content["model"]["vocab"]["zzzz"] + 1
    assert tokenizer.vocab_size > before


def test_digits_are_split_as_tokenizer_json_says_whatever_class_is_named(tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import pre_tokenizers

    on_disk.byte_level(tmp_path)
    backend = Backend.from_file(str(tmp_path / "tokenizer.json"))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    on_disk.edit_config(tmp_path, tokenizer_class="GPT2Tokenizer")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("a  1") == backend.encode("a  1").ids
    assert len(tokenizer.encode("12345", add_special_tokens=False)) == 5


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ([1, 2, 3], None, {1, 2, 3}),
        (3, None, {1, 3}),
        (None, 2, {1, 2}),
        (None, [2, 3], {1, 2, 3}),
        ([3], 2, {1, 3}),
        (None, None, {1}),
    ],
)
def test_all_end_of_sequence_ids(tmp_path, generation, config, expected):
    """generation_config.json before config.json, an id or a list; the tokenizer's own (1 here) always."""
    tiny_models.save_tokenizer(tmp_path)
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": config}))
    assert Tokenizer.load(tmp_path).eos_token_ids == expected


@pytest.mark.parametrize("kind", [{"__type": "AddedToken"}, {}], ids=["typed", "untyped"])
def test_bos_and_eos_given_as_a_dict(tmp_path, kind):
    on_disk.byte_level(tmp_path, chat_template=DATED_TEMPLATE)
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    on_disk.edit_config(
        tmp_path,
        bos_token={"content": "<|bos|>", **flags, **kind},
        eos_token={"content": "<|end|>", **flags, **kind},
    )
    tokenizer = Tokenizer.load(tmp_path)
    end = tokenizer.encode("<|end|>", add_special_tokens=False)
    assert tokenizer.eos_token_ids == set(end)
    assert tokenizer.chat_tokens(HELLO)[0] == tokenizer.bos_token_id == 0


def test_truncation_and_padding_in_the_file_are_switched_off(tmp_path):
    from tokenizers import Tokenizer as Backend

    on_disk.byte_level(tmp_path)
    backend = Backend.from_file(str(tmp_path / "tokenizer.json"))
    backend.enable_truncation(5)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert len(tokenizer.encode("x")) == 2
    assert tokenizer.decode(tokenizer.encode("y" * 30)) == "y" * 30


def test_never_two_bos(dated):
    ids = dated.chat_tokens(HELLO)
    assert isinstance(ids, list)
    assert all(type(i) is int for i in ids)
    assert ids.count(dated.bos_token_id) == 1
    assert ids[0] == dated.bos_token_id
    assert dated.encode("a") == dated.encode("<|bos|>a")
    assert dated.encode("<|bos|>") == [0] == dated.encode("")
    assert dated.encode("<|bos|><|bos|>a", add_special_tokens=False)[:2] == [0, 0]


def test_the_chat_is_that_of_transformers(tmp_path, dated):
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    messages = [
        {"role": "system", "content": "Be kind.\n"},
        {"role": "user", "content": " Hé 😀? <|eot|> "},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "2 + 2"},
    ]
    expected = theirs.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False, date_string="01 Jan 2000"
    )
    assert dated.chat_tokens(messages, date_string="01 Jan 2000") == expected


def test_the_date_is_frozen_or_given(dated):
    assert "Today: 09 May 2031\n" in dated.decode(dated.chat_tokens(HELLO))
    assert "Today: 26 Jul 2024\n" in dated.decode(dated.chat_tokens(HELLO, date_string="26 Jul 2024"))


def test_without_a_given_day_it_is_the_day_of_loading(tmp_path):
    on_disk.byte_level(tmp_path, chat_template=DATED_TEMPLATE)
    before = datetime.now()
    tokenizer = Tokenizer.load(tmp_path)
    days = {f"Today: {day:%d %b %Y}\n" for day in (before, datetime.now())}
    assert any(day in tokenizer.decode(tokenizer.chat_tokens(HELLO)) for day in days)


def test_dates_in_every_spelling_and_named_template(tmp_path):
    source = "{{ strftime_now( '%Y' ) }} {% set d = strftime_now(\"%d.%m.\") %}{{ d }} {{ strftime_now is defined }}"
    on_disk.byte_level(tmp_path, chat_template={"default": source, "other": "x"})
    tokenizer = Tokenizer.load(tmp_path, today=datetime(1999, 12, 31))
    assert tokenizer.decode(tokenizer.chat_tokens(HELLO)) == "1999 31.12. True"


def test_template_variables_and_an_unfinished_answer(dated):
    whole = dated.decode(dated.chat_tokens(HELLO), skip_special_tokens=False)
    assert whole.endswith("user: Hello<|eot|>assistant: ")
    without = dated.chat_tokens(HELLO, add_generation_prompt=False)
    assert dated.decode(without, skip_special_tokens=False).endswith("user: Hello<|eot|>")
    begun = [*HELLO, {"role": "assistant", "content": "Well, I"}]
    ids = dated.chat_tokens(begun, continue_final_message=True)
    assert dated.decode(ids, skip_special_tokens=False).endswith("assistant: Well, I")


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "strftime_now", "messages", "self", "tools"])
def test_arguments_that_steer_the_library_are_refused(dated, name):
    with pytest.raises(TextError, match=name):
        dated.chat_tokens(HELLO, **{name: "{{ 1 }}"})


def test_no_chat_template_says_where_to_go(tmp_path):
    on_disk.byte_level(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert not tokenizer.has_chat_template
    with pytest.raises(TextError, match="/v1/completions"):
        tokenizer.chat_tokens(HELLO)
    assert tokenizer.encode("Hello")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "messages is empty"),
        ([{"role": "wizard", "content": "x"}], "Only user and assistant roles"),
        ([{"role": "user"}], r"messages\[0\].content must be a string"),
        ([*HELLO, {"content": "x"}], r"messages\[1\].role must be a string"),
        ([{"role": "user", "content": None}], "got NoneType"),
        ([{"role": "user", "content": [{"type": "text"}]}], "got list"),
        ([{"role": "user", "content": "\ud83d"}], "surrogate"),
    ],
)
def test_messages_that_cannot_be_rendered_are_refused_in_words(tmp_path, messages, words):
    on_disk.byte_level(tmp_path, chat_template=STRICT_TEMPLATE)
    with pytest.raises(TextError, match=words):
        Tokenizer.load(tmp_path).chat_tokens(messages)


def test_what_people_wrote_is_not_repeated_in_the_error(tmp_path):
    """Errors reach logs; the library's own message here would quote the conversation."""
    on_disk.byte_level(tmp_path, chat_template="{% if false %}{{ messages[0]['content'] }}{% endif %}nothing of it")
    with pytest.raises(TextError, match="does not appear") as raised:
        Tokenizer.load(tmp_path).chat_tokens(
            [{"role": "assistant", "content": "my secret"}], continue_final_message=True
        )
    assert "secret" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_template_that_is_broken_is_refused_in_words(tmp_path):
    on_disk.byte_level(tmp_path, chat_template="{% for m in messages %}{{ m.content.nope() }}")
    with pytest.raises(TextError, match="chat template does not take these messages"):
        Tokenizer.load(tmp_path).chat_tokens(HELLO)


def test_half_a_surrogate_pair_is_refused(dated):
    with pytest.raises(TextError, match="surrogate"):
        dated.encode("half \ud83d")


def test_folders_without_a_usable_tokenizer(tmp_path):
    with pytest.raises(TextError, match="neither a folder"):
        Tokenizer.load(tmp_path / "absent")
    with pytest.raises(TextError, match="no tokenizer can be read"):
        Tokenizer.load(tmp_path)
    on_disk.byte_level(tmp_path)
    whole = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(TextError, match="no tokenizer can be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text(whole)
    (tmp_path / "generation_config.json").write_text("[1, 2]")
    with pytest.raises(TextError, match="must hold a JSON object"):
        Tokenizer.load(tmp_path)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(TextError, match="not valid JSON"):
        Tokenizer.load(tmp_path)


def test_bytes_of_tokens(tmp_path):
    tiny_models.save_tokenizer(tmp_path / "tok")
    tok = Tokenizer.load(tmp_path / "tok")
    assert b"".join(tok.token_bytes(i) for i in tiny_models.token_ids("é \n😀")) == "é \n😀".encode()
    assert tok.token_bytes(1) == b"<|eos1|>"
    assert tok.token_bytes(10**6) == b""
    llama2 = Tokenizer.load(on_disk.llama2_style(tmp_path / "llama2"))
    ids = llama2.encode("a 😀", add_special_tokens=False)
    assert b"".join(llama2.token_bytes(i) for i in ids) == " a 😀".encode()


def test_many_threads_at_once(dated):
    """The library's own wrapper fails here with "Already borrowed" when settings change under another thread."""
    texts = [f"text {n} with é and 😀 " * (n + 1) for n in range(8)]
    expected = [dated.encode(text) for text in texts]
    wrong: list[object] = []

    def work(n: int) -> None:
        try:
            for _ in range(30):
                if dated.encode(texts[n]) != expected[n] or dated.chat_tokens(HELLO)[0] != 0:
                    wrong.append(n)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_loading_needs_no_torch(tmp_path):
    """A second is saved at every start, and text tests stay quick."""
    import subprocess
    import sys

    on_disk.byte_level(tmp_path)
    code = (
        "import sys; from engine.text.tokenizer import Tokenizer; from engine.text import assembler;"
        f"Tokenizer.load({str(tmp_path)!r}).encode('x'); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
