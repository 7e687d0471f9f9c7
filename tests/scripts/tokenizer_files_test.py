"""Tests of scripts/tokenizing/tokenizer_files.py: the identity of a tokenizer, and which tokens begin and end its documents."""

import json
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from tokenizing.errors import InputError  # noqa: E402
from tokenizing.tokenizer_files import FilesBeside, SpecialTokens, identify, parse_tokenizer, tokenizer_hash, tokenizer_path  # noqa: E402
from scratch import ScratchTest  # noqa: E402

NAMES = ["<bos>", "[E]", "<|im_end|>", "</s>"]  # Special tokens, with the ids from 10 on.
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "<s>": 2}, "merges": []},
    "added_tokens": [{"id": 10 + i, "content": name, "special": True} for i, name in enumerate(NAMES)],
}


class IdentityTest(unittest.TestCase):
    def test_equals_the_values_that_the_program_computes(self):
        fixed = json.loads((ROOT / "tests/data/tokenizer_hashes.json").read_text())
        self.assertEqual(len(fixed), 8)
        for case in fixed:
            self.assertEqual(tokenizer_hash(case["tokenizer"]), case["hash"])

    def test_what_is_no_tokenizer_is_refused(self):
        for content in ("", "[]", "{}", '{"model": 5}', '{"model": {"vocab": {"a": "x"}}, "added_tokens": [5]}',
                        '{"model": {"merges": ["ab"]}}'):
            with self.assertRaisesRegex(InputError, "t.json: is not a Hugging Face tokenizer.json"):
                identify(parse_tokenizer(content.encode(), "t.json"), "t.json")


class SpecialTokensTest(ScratchTest):
    def tokens(self, tokenizer=TOKENIZER, prefix="", **files):
        for path in self.root.iterdir():
            path.unlink()
        for name, content in files.items():
            self.write(f"{prefix}{name}.json", json.dumps(content))
        return SpecialTokens(tokenizer, FilesBeside(str(self.root / (prefix + "tokenizer.json"))))

    def found(self, *arguments, **files):
        tokens = self.tokens(*arguments, **files)
        return tokens.find("bos").id, tokens.find("eos").id

    def test_the_first_file_that_names_a_token_decides(self):
        files = {
            "special_tokens_map": {"bos_token": "<bos>", "eos_token": {"content": "[E]", "special": True}},
            "tokenizer_config": {"bos_token": "</s>", "eos_token": {"content": "</s>"}},
            "generation_config": {"bos_token_id": 12, "eos_token_id": [12, 11]},
            "config": {"bos_token_id": 1, "eos_token_id": 0},
        }
        for expected in ((10, 11), (13, 13), (12, 12), (1, 0)):
            self.assertEqual(self.found(**files), expected)
            files.pop(next(iter(files)))
        self.assertEqual(self.found(prefix="train.", tokenizer_config={"bos_token": "[E]"}), (11, 13))
        # A list begins with ids that the tokenizer lacks, and -1 means none.
        self.assertEqual(self.found(config={"bos_token_id": -1, "eos_token_id": [99, True, 12]}), (10, 12))

    def test_special_tokens_map_is_read_only_without_added_tokens_decoder(self):
        config = {"bos_token": "</s>", "eos_token": "</s>"}
        later = {"special_tokens_map": {"bos_token": None, "eos_token": "[E]"}, "config": {"bos_token_id": 1, "eos_token_id": 0}}
        self.assertEqual(self.found(tokenizer_config=config, **later), (None, 11))
        self.assertEqual(self.found(tokenizer_config={}, **later), (None, 11))
        self.assertEqual(self.found(tokenizer_config=config, special_tokens_map={"eos_token": "[E]"}), (13, 11))
        for decoder in ({}, {"13": {"content": "</s>"}}):
            self.assertEqual(self.found(tokenizer_config=config | {"added_tokens_decoder": decoder}, **later), (13, 13))
            self.assertEqual(self.found(tokenizer_config={"added_tokens_decoder": decoder}, **later), (1, 0))

    def test_names_are_guessed_last(self):
        tokens = self.tokens()
        self.assertEqual((tokens.find("bos").id, tokens.find("bos").guessed), (10, True))
        self.assertEqual((tokens.find("eos").id, tokens.find("eos").guessed), (13, True))
        # An ordinary token with a usual name, here <s>, is text.
        self.assertEqual(self.found(TOKENIZER | {"added_tokens": []}), (None, None))
        self.assertFalse(self.tokens(config={"eos_token_id": 12}).find("eos").guessed)

    def test_a_file_can_say_that_there_is_none(self):
        later = {"config": {"bos_token_id": 1, "eos_token_id": 0}}
        self.assertEqual(self.found(tokenizer_config={"bos_token": None, "eos_token": "[E]"}, **later), (None, 11))
        self.assertEqual(self.found(tokenizer_config={"bos_token": "<bos>", "eos_token": "[E]", "add_bos_token": False, "add_eos_token": False}),
                         (None, 11))
        self.assertEqual(self.found(tokenizer_config={"add_bos_token": True}, **later), (1, 0))

    def test_options_override_the_files(self):
        tokens = self.tokens(tokenizer_config={"eos_token": "[E]"})
        for text, expected in (("</s>", 13), ("12", 12), ("0", 0), ("none", None), ("a", 0)):
            self.assertEqual(tokens.given("eos", text).id, expected)
        for text in ("", "-1", "14", "<none>", "1.5"):
            with self.assertRaisesRegex(InputError, "--bos is"):
                tokens.given("bos", text)

    def test_a_token_that_the_tokenizer_lacks_is_refused(self):
        for value in ("<x>", {"content": "<x>"}):
            tokens = self.tokens(tokenizer_config={"eos_token": value})
            with self.assertRaisesRegex(InputError, "tokenizer_config.json: eos_token is \"<x>\""):
                tokens.find("eos")
        for value in (["a"], [], {"content": {"a": 1}}, {"content": ["a"]}, {}, {"special": True}, 5, False):
            for kind in ("bos", "eos"):
                for name in ("tokenizer_config", "special_tokens_map"):
                    tokens = self.tokens(**{name: {f"{kind}_token": value}})
                    with self.assertRaisesRegex(InputError, f"{name}.json: {kind}_token is "):
                        tokens.find(kind)
        for wrong in ("[", "[]"):
            self.write("tokenizer_config.json", wrong)
            with self.assertRaisesRegex(InputError, "tokenizer_config.json: is not"):
                SpecialTokens(TOKENIZER, FilesBeside(str(self.root / "tokenizer.json")))

    def test_an_id_that_the_tokenizer_lacks_is_refused(self):
        for value in (99, 14, [99, 14], -2, True, "12", 12.5, {"id": 12}):
            for kind in ("bos", "eos"):
                for name in ("generation_config", "config"):
                    tokens = self.tokens(**{name: {f"{kind}_token_id": value}})
                    with self.assertRaisesRegex(InputError, f"{name}.json: {kind}_token_id is .*, expected .* below 14"):
                        tokens.find(kind)
        for value in (None, -1, []):
            self.assertEqual(self.found(generation_config={"eos_token_id": value}, config={"eos_token_id": 12}), (10, 12))
        # A file with less precedence does not matter.
        self.assertEqual(self.found(tokenizer_config={"eos_token": "[E]"}, config={"eos_token_id": 99}), (10, 11))

    def test_all_ids_of_the_generation_end_a_text(self):
        self.assertEqual(self.tokens(generation_config={"eos_token_id": [12, 0]}, config={"eos_token_id": 13}).ends_of_text(), [12, 0])
        self.assertEqual(self.tokens(generation_config={}, config={"eos_token_id": 13}).ends_of_text(), [13])
        self.assertEqual(self.tokens(tokenizer_config={"eos_token": "[E]"}).ends_of_text(), [11])

    def test_a_text_begins_as_transformers_begins_it(self):
        template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
                    "special_tokens": {"<bos>": {"id": "<bos>", "ids": [10], "tokens": ["<bos>"]}}}
        without = template | {"single": [{"Sequence": {"id": "A"}}]}
        for processor, config, expected in (
            (None, {"bos_token": "[E]"}, None),
            (None, {"bos_token": "[E]", "add_bos_token": True}, 11),
            (template, {"bos_token": "[E]"}, 10),
            (template, {"bos_token": "<bos>", "add_bos_token": False}, None),
            (without, {}, None),
            ({"type": "ByteLevel"}, {}, None),
            ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]}, {}, 10),
            ({"type": "RobertaProcessing", "sep": ["</s>", 13], "cls": ["<s>", 2]}, {}, 2),
        ):
            tokens = self.tokens(TOKENIZER | {"post_processor": processor}, tokenizer_config=config)
            self.assertEqual(tokens.added_bos(), expected, (processor, config))


class PathTest(ScratchTest):
    def test_a_folder_is_the_file_in_it(self):
        self.write("t/tokenizer.json", "{}")
        self.assertEqual(tokenizer_path(str(self.root / "t")), str(self.root / "t/tokenizer.json"))
        self.assertEqual(tokenizer_path("elsewhere.json"), "elsewhere.json")

    def test_a_folder_without_one_is_named(self):
        for names, expected in ((["notes.txt"], "has no tokenizer.json"), (["tokenizer.model"], "has tokenizer.model, but no tokenizer.json.*save_pretrained"),
                                (["vocab.json", "merges.txt"], "has vocab.json and merges.txt, but no")):
            folder = self.root / names[0]
            folder.mkdir()
            for name in names:
                (folder / name).write_text("")
            with self.assertRaisesRegex(InputError, expected):
                tokenizer_path(str(folder))


if __name__ == "__main__":
    unittest.main()
