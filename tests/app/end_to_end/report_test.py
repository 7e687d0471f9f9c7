"""Tests of octavo report and octavo plan --html: the JSON documents of their pages, and what the pages show. Node runs the scripts of a
page, and a headless browser draws it, if they are installed."""

import csv
import html.parser
import json
import os
import re
import shutil
import struct
import subprocess
import zlib

from support import ROOT, Scratch, text_documents, write_megatron

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NODE = shutil.which("node")
PAGE_DOM = ROOT / "tests/app/report/page_dom.js"
# Colors of the lines of the first and the second run in the light theme.
SERIES = ((0x25, 0x63, 0xC9), (0xD9, 0x48, 0x0F))
VOID = {"meta", "br"}


class Page(html.parser.HTMLParser):
    """Checks that the elements of a page nest correctly and that the page loads no other files."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.lines, self.loads, self.text = [], set(), {}, [], text
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes, closed=False):
        attributes = dict(attributes)
        self.loads += [f"{tag} {name}" for name in ("src", "href", "xlink:href", "action", "data") if name in attributes]
        if "id" in attributes:
            assert attributes["id"] not in self.ids, attributes["id"]
            self.ids.add(attributes["id"])
            if tag == "figure":
                self.figure = attributes["id"]
        if tag == "polyline":
            self.lines.setdefault(self.figure, []).append(attributes["points"])
        if not closed and tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes, closed=True)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.open[-3:])


def document(page):
    """Returns the JSON document in the page."""
    return json.loads(re.search(r'<script id="document" type="application/json">(.*?)</script>', page.text, re.S).group(1))


def shown(path):
    """Runs the scripts of the page in Node and returns the resulting page."""
    return Page(subprocess.run([NODE, PAGE_DOM, path], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout)


def browser():
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


def pixels(png):
    """Returns (width, height, rows of RGB or RGBA bytes, bytes per pixel) of a PNG with 8 bits per channel."""
    data = png.read_bytes()
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    assert depth == 8 and kind in (2, 6)
    size, packed, offset = {2: 3, 6: 4}[kind], b"", 8
    while offset < len(data):
        (length,) = struct.unpack(">I", data[offset : offset + 4])
        if data[offset + 4 : offset + 8] == b"IDAT":
            packed += data[offset + 8 : offset + 8 + length]
        offset += 12 + length
    raw, stride, rows, above = zlib.decompress(packed), width * size, [], bytearray(width * size)
    for y in range(height):
        begin = y * (stride + 1)
        how, row = raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride])
        if how:
            for i in range(stride):
                left, up, corner = (row[i - size], above[i], above[i - size]) if i >= size else (0, above[i], 0)
                if how == 4:
                    near = min((abs(up - corner), 0, left), (abs(left - corner), 1, up), (abs(left + up - 2 * corner), 2, corner))[2]
                row[i] = (row[i] + (left, up, (left + up) // 2, near if how == 4 else 0)[how - 1]) & 255
        rows.append(row)
        above = row
    return width, height, rows, size


class ReportTest(Scratch):
    def runs(self):
        tokens = write_megatron(self.dir / "corpus" / "tokens", text_documents(40, 400))
        other = write_megatron(self.dir / "corpus" / "more", text_documents(20, 300, seed=3))
        for name, lr in (("one", 3e-3), ("two", 6e-3)):
            config = self.config(tokens, f"{name}.yaml", optimizer={"lr": lr}, logging={"dir": f"runs/{name}"}, checkpoint={"dir": f"{name}_checkpoints", "every": 4},
                                 data={"train": [{"path": tokens, "name": "words"}, {"path": other, "name": "more <words>"}], "validation": [{"path": tokens}], "allow_overlap": True},
                                 validation={"every": 3, "batches": 1}, precision={"linear": "fp8_tensorwise"}, training={"steps": 8})
            self.run_octavo("train", config, "logging.fp8_stats_every=2")
        # The second run is resumed and trained further.
        self.run_octavo("train", config, "training.steps=12", "logging.fp8_stats_every=2", "checkpoint.allow_changes=[schedule]")
        return [f"runs/{name}" for name in ("one", "two")]

    def page(self, *runs):
        self.run_octavo("report", *runs, "--output", "report.html")
        page = Page((self.dir / "report.html").read_text())
        self.assertEqual(page.loads, [])
        self.assertNotRegex(page.text, r"https?:|@import|fetch\(|XMLHttp")
        return page

    def test_page(self):
        one, two = self.runs()
        page = self.page(one)
        (run,), (line,) = document(page)["runs"], document(page)["lines"]
        drawn = {"loss", "validation_loss", "loss_by_dataset/words", "loss_by_dataset/more <words>", "epochs/words", "grad_norm", "lr", "wps", "step_ms", "data_ms",
                 "memory_gib", "goodput"}
        self.assertLessEqual(drawn, set(line["metrics"]))
        self.assertNotIn("mfu", line["metrics"])  # A CPU has no MFU.
        metrics = self.metrics(one)
        losses = line["metrics"]["loss"]
        self.assertEqual(losses["x"], sorted(metrics))
        for step, loss in zip(losses["x"], losses["y"]):
            self.assertAlmostEqual(loss, metrics[step]["loss"], places=4)
        self.assertEqual([run["config"][key] for key in ("optimizer.lr", "training.steps")], ["0.003", "8"])
        both = self.page(one, two)
        first, second = document(both)["runs"]
        gaps = [{key for key in line["metrics"] if key.endswith("loss_gap")} for line in document(both)["lines"]]
        self.assertEqual(gaps, [set(), {"loss_gap", "validation_loss_gap"}])
        restart = next(event for event in second["events"] if event["kind"] == "restart")
        self.assertRegex(restart["text"], "resuming .*step_00000008 after step 8")
        if NODE is None:
            self.skipTest("node is not installed")
        self.page(one)
        alone = shown(self.dir / "report.html")
        charts = {"loss", "loss_by_dataset", "epochs", "grad_norm", "lr", "wps", "step_ms", "data_ms", "memory_gib", "goodput", "fp8_saturated", "fp8_flushed"}
        self.assertLessEqual(charts, alone.ids)
        self.assertFalse({"mfu", "loss_gap"} & alone.ids)
        # The chart of the loss has two lines, training and validation.
        self.assertEqual([len(alone.lines[chart]) for chart in ("loss", "loss_by_dataset", "fp8_saturated")], [2, 2, 3])
        self.assertEqual(len(alone.lines["loss"][0].split()), 8)
        self.assertIn("more &lt;words&gt;", alone.text)
        self.page(one, two)
        compared = shown(self.dir / "report.html")
        self.assertEqual(len(compared.lines["loss_gap"]), 2)
        self.assertRegex(compared.text, r'<tr class="diff"><td class="mono">optimizer.lr</td><td class="mono">0.003</td><td class="mono">0.006</td>')
        self.assertRegex(compared.text, r'<td class="kind restart">restart</td><td class="">resuming [^<]*step_00000008 after step 8')

    def test_refused(self):
        (self.dir / "empty").mkdir()
        self.refused("report", "empty", "--output", "x.html", mentions=["empty", "metrics.jsonl", "logging.dir"])
        self.refused("report", "none", "--output", "x.html", mentions=["none"])
        (self.dir / "empty/metrics.jsonl").write_text('{"step":1,"los')
        self.refused("report", "empty", "--output", "x.html", mentions=["empty/metrics.jsonl has no step"])
        (self.dir / "empty/metrics.jsonl").write_text('{"step":1,"loss":2.5}\n')
        self.refused("report", "empty", "--output", "no/such/x.html", mentions=["no/such/x.html"])
        for _ in range(2):  # The second page replaces the first one.
            self.run_octavo("report", "empty", "--output", "x.html")
        (self.dir / "torn").mkdir()
        (self.dir / "torn/metrics.jsonl").write_text('{"step":1,"los')
        # The folder of the run's folder stands for the run, and the path of the output is printed without control characters.
        self.assertTrue(self.run_octavo("report", ".", "--output", "\x1b[31mx.html").out.startswith("\\x1b[31mx.html: 1 run, "))
        self.assertIn("left out: ./torn/metrics.jsonl has no step", self.run_octavo("report", ".", "--output", "x.html").out)
        self.assertEqual(document(Page((self.dir / "x.html").read_text()))["lines"][0]["metrics"]["loss"], {"x": [1], "y": [2.5]})

    def test_runs_below_a_folder(self):
        """Without --output there is a table only. Runs that differ in seeds are one line of it."""
        tokens = write_megatron(self.dir / "tokens", text_documents(40, 400))
        for name, lr, seed in (("base/a", 3e-3, 1), ("base/b", 3e-3, 2), ("fast", 6e-3, 1)):
            config = self.config(tokens, optimizer={"lr": lr}, data={"seed": seed, "allow_overlap": True, "validation": [{"path": tokens}]},
                                 training={"steps": 4, "seed": seed}, validation={"every": 2, "batches": 1}, logging={"dir": f"runs/{name}"}, checkpoint={"dir": f"saved/{name}"})
            self.run_octavo("train", config)
        out = self.run_octavo("report", "runs").out.splitlines()
        self.assertRegex(out[0], r"^run +steps +optimizer\.lr +loss +least loss +validation loss +least validation loss$")
        self.assertRegex(out[1], r"^a and 1 other seed +4 +0\.003( +\d\.\d{4} ± 0\.\d{4}){4}$")
        self.assertRegex(out[2], r"^fast +4 +0\.006( +\d\.\d{4}){4}$")
        self.assertEqual(len(out), 3)
        self.assertEqual(len(self.run_octavo("report", "runs", "--each-seed").out.splitlines()), 4)
        for _ in range(2):  # The second table replaces the first one.
            self.run_octavo("report", "runs", "--output", "x.html", "--csv", "x.csv")
        rows = list(csv.DictReader((self.dir / "x.csv").read_text().splitlines()))
        self.assertEqual([(row["run"], row["group"], row["optimizer.lr"], row["data.seed"]) for row in rows],
                         [("a", "1", "0.003", "1"), ("b", "1", "0.003", "2"), ("fast", "2", "0.006", "1")])
        self.assertEqual(float(rows[0]["validation_loss"]), self.metrics("runs/base/a")[4]["validation_loss"])
        self.assertEqual([line["runs"] for line in document(Page((self.dir / "x.html").read_text()))["lines"]], [[0, 1], [2]])
        self.refused("report", "runs", "--csv", "config.yaml", mentions=["config.yaml", "a table of octavo report"])
        self.refused("report", "runs", "--watch", 1, mentions=["--watch", "--output"])

    def test_watch(self):
        """--watch writes the page again until the run has logged its last step."""
        (self.dir / "run").mkdir()
        (self.dir / "run/config.yaml").write_text("training: {steps: 2}\n")
        (self.dir / "run/metrics.jsonl").write_text('{"step":1,"loss":2.5}\n')
        path = self.dir / "x.html"
        process = self.start("report", "run", "--output", "x.html", "--watch", 1)
        self.wait_for(path.exists, process)
        self.assertEqual(document(Page(path.read_text()))["reload_s"], 1)
        (self.dir / "run/metrics.jsonl").write_text('{"step":1,"loss":2.5}\n{"step":2,"loss":2.0}\n')
        self.assertEqual(self.finish(process).code, 0)
        last = document(Page(path.read_text()))
        self.assertEqual((last["reload_s"], last["runs"][0]["last_step"]), (0, 2))


class MemoryPageTest(Scratch):
    def test_plan(self):
        overrides = ("parallel.reshard_after_forward=true", "activation_checkpointing.mode=none")
        out = self.run_octavo("plan", ROOT / "configs/llama3_8b_8gpu.yaml", "--gpus", 8, "--html", "memory.html", "--all", *overrides).out
        page = Page((self.dir / "memory.html").read_text())
        self.assertEqual(page.loads, [])
        items = {item["name"]: item for item in document(page)["items"]}
        for name in ("master weights", "gradients", "exp_avg", "activations gate_up", "gathered blocks"):
            self.assertIn(name, out)
        self.assertEqual([items[name]["contents"] for name in ("master weights", "gradients", "exp_avg", "gathered blocks")],
                         ["weights", "gradients", "optimizer", "gathered weights"])
        self.assertEqual(items["activations gate_up"]["blocks"], list(range(32)))
        if NODE is None:
            self.skipTest("node is not installed")
        bands = dict(re.findall(r'<g class="band"><title>([^:<]*): [\d.]+ GiB</title>(.*?)</g>', shown(self.dir / "memory.html").text, re.S))
        self.assertLessEqual({"master weights", "gradients", "exp_avg", "activations gate_up", "gathered blocks"}, set(bands))
        used = [tuple(map(float, found)) for found in re.findall(r'class="area used c\d" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"', bands["activations gate_up"])]
        self.assertEqual(len(used), 3 * 32)  # Each block has a row in each of three micro-batches.
        first = used[::3]
        # A later block begins later, ends earlier, and is drawn above.
        for below, above in zip(first, first[1:]):
            self.assertLess(below[0], above[0])
            self.assertGreater(below[0] + below[2], above[0] + above[2])
            self.assertGreater(below[1], above[1])
        self.assertLess(used[0][0] + used[0][2], used[1][0] + 0.2)  # The next micro-batch begins after the previous one ends.

    def test_refused(self):
        config = self.config("nowhere")
        self.refused("plan", config, "--html", "memory.html", mentions=["--html", "--machine"])
        self.refused("plan", ROOT / "configs/llama3_8b_8gpu.yaml", "--html", "no/such.html", mentions=["no/such.html"])


class ReportInBrowserTest(Scratch):
    def test_drawn(self):
        """The script runs to its end, a zoom changes the ticks, and the lines are visible."""
        path = browser()
        if path is None:
            self.skipTest(f"none of {', '.join(BROWSERS)} is installed")
        for run, above in (("one", 0.0), ("two", 0.5)):
            (self.dir / run).mkdir()
            lines = [json.dumps({"step": step, "loss": 2 + above + 5 / step, "grad_norm": 1.0, "lr": 1e-3}) for step in range(1, 13)]
            (self.dir / run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        self.run_octavo("report", "one", "two", "--output", "report.html")
        page = Page((self.dir / "report.html").read_text())
        (self.dir / "zoomed.html").write_text("zoom([4,8]);</script>".join(page.text.rsplit("</script>", 1)))
        options = [path, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=640,1100", f"--user-data-dir={self.dir}/profile"]
        quiet = {"stderr": subprocess.DEVNULL, "timeout": 120, "check": True, "cwd": self.dir, "env": os.environ | {"HOME": str(self.dir)}}
        whole, zoomed = (subprocess.run([*options, "--dump-dom", f"file://{self.dir}/{name}.html"], stdout=subprocess.PIPE, text=True, **quiet).stdout
                         for name in ("report", "zoomed"))
        self.assertIn('data-charts="4"', zoomed)  # The charts are the loss, the loss gap, the gradient norm and the learning rate.
        figure = zoomed.split('id="loss">')[1].split("</figure>")[0]
        self.assertIn(">7</text>", figure)
        self.assertNotIn(">12</text>", figure)
        self.assertIn(">12</text>", whole)
        subprocess.run([*options, "--screenshot=shot.png", f"file://{self.dir}/report.html"], stdout=subprocess.DEVNULL, **quiet)
        width, height, rows, size = pixels(self.dir / "shot.png")
        self.assertEqual((width, height), (640, 1100))
        for color in SERIES:
            seen = sum(1 for row in rows for x in range(0, len(row), size) if all(abs(row[x + i] - color[i]) < 40 for i in range(3)))
            self.assertGreater(seen, 100, color)
