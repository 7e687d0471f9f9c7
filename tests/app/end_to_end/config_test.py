"""Tests of octavo config: the list of keys, their documentation, and the effective values of a config."""

import json

from support import ROOT, Scratch


class ConfigCommandTest(Scratch):
    def test_the_documentation_is_the_programs(self):
        text = (ROOT / "docs" / "config.md").read_text()
        self.assertEqual(self.run_octavo("config", "--markdown").out, text, "octavo config --markdown > docs/config.md")

    def test_every_key_is_listed(self):
        text = self.run_octavo("config").out
        self.assertIn("\noptimizer\n", text)
        config = self.config("none")
        sections = self.run_octavo("config", config, "model.rope_scaling={factor: 2}").out.splitlines()
        section = ""
        for line in sections:
            section, key = (line.split(":")[0], "") if line[0] != " " else (section, line.split(":")[0].strip())
            name = f"{section}.{key}" if key else section
            if f"  {name}." not in text:  # The line is the heading of a subsection.
                self.assertIn(f"  {name}\n" if key or section == "device" else f"{name}\n", text)

    def test_a_word_selects_keys(self):
        text = self.run_octavo("config", "GRAD_CLIP").out
        self.assertIn("  optimizer.grad_clip\n", text)
        self.assertNotIn("training.steps", text)
        self.assertIn("  optimizer.grad_clip\n", self.run_octavo("config", "max_norm").out)
        self.refused("config", "frobnicate", mentions=["no key of a config has 'frobnicate'"])

    def test_values_come_back(self):
        config = self.config("none", optimizer={"schedule": "wsd"})
        first = self.run_octavo("config", config, "training.steps=77", "data.tokenizer='a: [b] #c'").out
        self.assertIn("  steps: 77\n", first)
        self.assertIn("  schedule: wsd\n", first)
        self.assertIn("  betas: [0.9, 0.95]\n", first)
        (self.dir / "effective.yaml").write_text(first)
        self.assertEqual(self.run_octavo("config", "effective.yaml").out, first)
        values = json.loads(self.run_octavo("config", "effective.yaml", "--json").out)
        self.assertEqual((values["training"]["steps"], values["data"]["tokenizer"]), (77, "a: [b] #c"))
        (self.dir / "effective.yaml").write_text(json.dumps(values))  # JSON is valid YAML.
        self.assertEqual(self.run_octavo("config", "effective.yaml").out, first)
        self.refused("config", "--json")
        self.refused("config", "effective.yaml", "--json", "--value", "training.steps")
        for path in sorted((ROOT / "configs").glob("*.yaml")):
            (self.dir / "effective.yaml").write_text(self.run_octavo("config", path).out)
            self.assertEqual(self.run_octavo("config", "effective.yaml").out, (self.dir / "effective.yaml").read_text())

    def test_bad_input_is_refused(self):
        config = self.config("none")
        self.refused("config", config, "training.step=5", mentions=["training.step", "training.steps"])
        self.refused("config", config, "--markdown", mentions=["--markdown"])
        for override in ("model.init_from=nowhere", f"model.init_from={self.dir}"):
            self.assertEqual(self.refused("config", config, override), self.refused("train", config, override))
        self.refused("config", config, "--value", "training.step", mentions=["there is no key training.step"])
