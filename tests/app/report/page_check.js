// Checks the scripts of app/report in Node: axes, numbers, charts, and that no text of a document is interpreted as markup.
"use strict";

const assert = require("assert");
const fs = require("fs");
const path = require("path");
const {run} = require("./page_dom.js");

const folder = path.join(__dirname, "../../../app/report");
const scripts = (...names) => names.map(name => fs.readFileSync(path.join(folder, `${name}.js`), "utf8")).join("");
const plain = value => JSON.parse(JSON.stringify(value));  // Copies a value out of the realm of the scripts.

const row = {metric: "loss", title: "Loss", unit: "nats", note: "", scale: 1, from_zero: false, logarithmic: false};
const aRun = more => ({name: "one", dir: "runs/one", last_step: 10, metrics: {loss: {x: [0, 10], y: [0, 10]}}, summary: {}, counts: {}, events: [], starts: [],
  config: {}, ...more});
const linesOf = runs => runs.map((one, i) => ({name: runs.filter(({name}) => name === one.name).length > 1 ? one.dir : one.name, runs: [i], metrics: one.metrics}));
const report = (runs, charts = [row], lines = linesOf(runs)) => run(JSON.stringify({charts, runs, lines}), scripts("elements", "charts", "report"));
const points = (main, id) => main.byId(id).all(element => element.name === "polyline").map(element => element.attributes.points);

const checks = {
  "Runs that differ in seeds are one line with a band"() {
    const runs = [aRun(), aRun({name: "two"})];
    const loss = {x: [0, 10], y: [2, 8], low: [1, 7], high: [3, 9]};
    const {main} = report(runs, [row], [{name: "one and 1 other seed", runs: [0, 1], metrics: {loss}}]);
    assert.equal(points(main, "loss").length, 1);
    const bands = main.byId("loss").all(element => element.name === "polygon");
    assert.equal(bands.length, 1);
    assert.equal(bands[0].attributes.points.split(" ").length, 4);
    assert.match(main.textContent, /one and 1 other seed/);
  },
  "Of many runs those with the lowest loss have colors and a place in the legend"() {
    const runs = Array.from({length: 30}, (_, i) => aRun({name: `run${i}`, metrics: {loss: {x: [0, 10], y: [9, 40 - i]}},
      config: {"optimizer.lr": String(i), "logging.dir": `runs/run${i}`}, events: [{time: "", step: 5, kind: "checkpoint", text: "saved"}], counts: {checkpoint: 1}}));
    const {main, evaluate} = report(runs);
    const lines = main.byId("loss").all(element => element.name === "polyline");
    assert.equal(lines.length, 30);
    assert.equal(lines.filter(line => line.attributes.class.includes("muted")).length, 22);
    assert(lines.slice(0, 22).every(line => line.attributes.class.includes("muted")));  // Drawn below the others.
    assert.deepEqual(plain(evaluate("charts[0].keys.children.map(key => key.textContent)")).sort(),
      ["22 others", ...[29, 28, 27, 26, 25, 24, 23, 22].map(i => `run${i}`)].sort());
    assert.equal(main.byId("loss").all(element => element.attributes.class?.startsWith("mark")).length, 0);
    const heads = main.byId("config-differences").all(element => element.name === "th").map(head => head.textContent);
    assert.deepEqual(plain(heads), ["run", "optimizer.lr"]);
  },
  "Ticks are at 1, 2 or 5 times a power of ten"() {
    const {evaluate} = report([aRun()]);
    assert.deepEqual(plain(evaluate("ticks(0, 10, 5)")), [0, 2, 4, 6, 8, 10]);
    assert.deepEqual(plain(evaluate("ticks(3, 3, 5)")), [3]);
    assert.deepEqual(plain(evaluate("logTicks(0.5, 30)")), [0.5, 1, 2, 5, 10, 20]);
    assert.deepEqual(plain(evaluate("logTicks(1, 1e6)")), [1, 10, 100, 1000, 1e4, 1e5, 1e6]);
    assert(evaluate("logTicks(1e-300, 1e300).length") < 20);
    for (const [least, most] of [["1e20", "1e20 + 16384"], ["-1e299", "1e299"], ["0", "5e-324"], ["0", "Infinity"], ["NaN", "1"]])
      assert(evaluate(`ticks(${least}, ${most}, 5).length`) <= 20);
  },
  "Numbers are short"() {
    const {evaluate} = report([aRun()]);
    assert.equal(evaluate("[0, 2e4, 3e-4, 2.5e-3].map(v => tickLabel(v, Math.max(v, 1e-3))).join()"), "0,20k,3e-4,2.5e-3");
    assert.equal(evaluate("[1500000, 812, undefined].map(shortNumber).join()"), "1.5M,812,-");
    assert.equal(evaluate("[16432.4, 2.34159, 3e-5, NaN].map(longNumber).join(' ')"), "16,432 2.3416 3.00e-5 -");
  },
  "A line has its points where they are"() {
    const {main} = report([aRun()], [{...row, metric: "none"}, {...row, from_zero: true}]);
    const [[first]] = points(main, "loss").map(text => text.split(" "));
    assert.equal(first, "62.0,214.0");
    assert.equal(main.byId("loss").all(element => element.attributes.role === "img")[0].attributes["aria-label"], "Loss by step");
  },
  "A zoom draws other ticks, and a tip says the values"() {
    const {main, evaluate} = report([aRun(), aRun({name: "two"})]);
    const tick = text => main.byId("loss").all(element => element.attributes.class === "tick" && element.textContent === text).length;
    assert.deepEqual([tick("10") > 0, tick("7")], [true, 1]);
    evaluate("zoom([4, 8])");
    assert.deepEqual([tick("2"), tick("7")], [0, 1]);
    const svg = main.byId("loss").all(element => element.name === "svg")[0];
    svg.listeners.pointermove({clientX: 1290, clientY: 100});
    assert.match(main.byId("loss").textContent, /step 10one 10 natstwo 10 nats$/);
    svg.listeners.dblclick();
    assert.equal(plain(evaluate("view"))[1], 10);
  },
  "Several runs have a chart for each name, a line for each run, and their gaps"() {
    const group = {...row, metric: "loss_by_dataset"};
    const metrics = {loss: {x: [1], y: [1]}, validation_loss: {x: [1], y: [1]}, "loss_by_dataset/a": {x: [1], y: [1], mean: {x: [1], y: [1]}},
      "loss_by_dataset/b": {x: [1], y: [1]}};
    const one = report([aRun({metrics})], [row, group]).main;
    assert.deepEqual([points(one, "loss").length, points(one, "loss_by_dataset").length], [2, 3]);
    const both = report([aRun({metrics}), aRun({metrics, dir: "runs/other"})], [row, group]).main;
    assert.deepEqual([points(both, "loss").length, points(both, "loss_by_dataset-0").length, points(both, "loss_by_dataset-1").length], [4, 4, 2]);
    assert.match(both.byId("loss").textContent, /^Lossrings: validationruns\/oneruns\/other/);
  },
  "An axis that outliers would flatten is cut and says so"() {
    const steps = Array.from({length: 40}, (_, i) => i + 1);
    const {main, evaluate} = report([aRun({last_step: 40, metrics: {loss: {x: steps, y: steps.map(step => step === 7 ? 2600 : 400 + step)}}})],
      [{...row, from_zero: true}]);
    const cut = () => main.byId("loss").all(element => element.name === "button").map(button => button.textContent);
    assert.deepEqual(cut(), ["axis cut, values reach 2600: show all"]);
    assert(evaluate("charts[0].most") < 500);
    main.byId("loss").all(element => element.name === "button")[0].listeners.click();
    assert.deepEqual(cut(), ["cut the axis"]);
    assert(evaluate("charts[0].most") > 2600);
    evaluate("zoom([10, 30])");
    assert.deepEqual(cut(), []);
  },
  "A click on a legend hides a run and its marks, a logarithmic axis is a click away"() {
    const events = [{time: "", step: 5, kind: "warning", text: "slow"}];
    const metrics = {loss: {x: [1, 10], y: [8, 2]}};
    const {main, evaluate} = report([aRun({events, metrics}), aRun({name: "two", metrics})]);
    const marks = () => main.byId("loss").all(element => element.name === "path").map(mark => mark.attributes.class);
    const click = text => main.byId("loss").all(element => element.name === "button" && element.textContent === text)[0].listeners.click();
    assert.deepEqual(marks(), ["mark warning c0 d0"]);
    main.byId("loss").all(element => element.name === "svg")[0].listeners.pointermove({clientX: evaluate("charts[0].x(1)"), clientY: 100});
    assert.doesNotMatch(main.byId("loss").textContent, /one: slow/);
    click("one");
    assert.deepEqual([points(main, "loss").length, marks().length], [1, 0]);
    click("one");
    click("log");
    assert.equal(points(main, "loss").length, 2);
    assert.equal(evaluate("Math.round(charts[0].y(4))"), evaluate("Math.round((charts[0].y(8) + charts[0].y(2)) / 2)"));
  },
  "The x axis shows steps, tokens or wall time, and the tip all of them"() {
    const axes = {tokens: {x: [1, 10], y: [1000, 10000]}, wall_s: {x: [1, 5, 10], y: [60, 300, 240]}};
    const metrics = {loss: {x: [1, 5, 10], y: [3, 2, 1], mean: {x: [1, 5, 10], y: [2.5, 2.25, 2]}}};
    const {main, evaluate} = report([aRun({axes, metrics, events: [{time: "", step: 5, kind: "warning", text: "slow"}]})]);
    assert.deepEqual(main.all(element => element.attributes.class === "bar")[0].all(element => element.name === "button").map(button => button.textContent),
      ["steps", "tokens", "wall time"]);
    evaluate('change({axis: "tokens"})');
    assert.equal(plain(evaluate("view"))[1], 10000);
    main.byId("loss").all(element => element.name === "svg")[0].listeners.pointermove({clientX: evaluate("charts[0].x(5000)"), clientY: 100});
    assert.match(main.byId("loss").textContent, /step 5, 5000 tokens, 5 minutesLoss 2.25 nats, smoothed; raw 2slow$/);
    evaluate('change({axis: "wall time"})');
    assert.deepEqual(plain(evaluate("charts[0].lines[0].at")), [1, 5, 5]);
  },
  "The ninth run has the first one's color and other dashes"() {
    const {main} = report(Array.from({length: 9}, (_, i) => aRun({name: `r${i}`})));
    const looks = main.byId("loss").all(element => element.name === "polyline").map(element => element.attributes.class);
    assert.deepEqual([looks[0], looks[8], new Set(looks).size], ["line c0 d0 points", "line c0 d1 points", 9]);
  },
  "Configs that differ stand first"() {
    const {main} = report([aRun({config: {"a.b": "1", "a.c": "x"}}), aRun({config: {"a.b": "2", "a.c": "x"}})]);
    assert.equal(main.byId("config-differences").html(), '<table id="config-differences"><tr><th class="mono">key</th><th class="mono">one</th><th class="mono">one</th></tr>' +
      '<tr class="diff"><td class="mono">a.b</td><td class="mono">1</td><td class="mono">2</td></tr></table>');
    assert.equal(main.byId("config").all(element => element.attributes.class === "diff").length, 1);
  },
  "Texts never become markup, and numbers that cannot be drawn are left out"() {
    const hostile = "</script><img src=x onerror=alert(1)>\u2028\u202e\u0007";
    const event = {time: hostile, step: 5, kind: "warning", text: hostile};
    const metrics = {["loss/" + hostile]: {x: [1, 2, 3, 4], y: [1e308, null, -1e308, 2]}, loss: {x: [1, 2, 3], y: [null, 1e301, 3]}};
    for (const key of ["__proto__", "constructor", ""]) Object.defineProperty(metrics, "loss/" + key, {value: {x: [1], y: [1]}, enumerable: true});
    const one = aRun({name: hostile, dir: hostile, metrics, events: [event, {...event, step: null}], config: {[hostile]: hostile, __proto__: null},
      starts: [{time: hostile, version: hostile, runs_on: hostile, hosts: hostile, command: hostile}], counts: {warning: 2}});
    for (const runs of [[one], [one, one]]) {
      const {main} = report(runs);
      assert.equal(main.all(element => element.name === "img" || element.name === "script").length, 0);
      assert.doesNotMatch(main.html(), /NaN|Infinity|[\u2028\u202e\u0007]/);
      assert.match(main.textContent, /<img src=x onerror=alert\(1\)>\\u2028\\u202e\\u0007/);
    }
    assert.equal(points(report([one]).main, "loss")[0].split(" ").length, 1);
  },
};

// A step of two blocks and one micro-batch. Forward takes 0 to 4 s, the head up to 6 s, backward up to 14 s, the optimizer up to 16 s.
const range = (name, begin, end) => ({name, begin, end});
const item = (name, more) => ({name, count: 1, bytes: 2 ** 30, lifetime: "whole run", contents: "other", blocks: [], ...more});
const plan = items => ({name: "x.yaml", ranks: 1, layers: 2, items, overlaid: [item("logits")], arena_bytes: 8 * 2 ** 30, outside_bytes: 0,
  total_bytes: 8 * 2 ** 30, available_bytes: 16 * 2 ** 30, fits: true, left_out: 0,
  ranges: [range("micro-batch", 0, 14), range("forward", 0, 4), range("block 0", 0, 2), range("block 1", 2, 4), range("head", 4, 6),
    range("backward", 6, 14), range("block 1", 6, 10), range("block 0", 10, 14), range("optimizer", 14, 16)]});

Object.assign(checks, {
  "Memory is full where an item is needed"() {
    const {main} = run(JSON.stringify(plan([
      item("weights", {contents: "weights"}),
      item("activations", {contents: "activations", lifetime: "one step", blocks: [0, 1], count: 2}),
      item("gradients", {contents: "gradients", lifetime: "one step"}),
      item("slot", {contents: "gathered weights", lifetime: "one block", blocks: [0], count: 1}),
      item("scratch", {contents: "activations", lifetime: "one block"}),
      item("</script>", {bytes: 1}),
    ])), scripts("elements", "memory"));
    const seconds = value => Math.round((Number(value) - 62) / (1296 - 62) * 16);
    const used = Object.fromEntries(main.byId("memory").all(element => element.attributes.class === "band").map(band => [band.children[0].textContent.split(":")[0],
      band.all(({attributes}) => attributes.class?.startsWith("area used")).map(({attributes: {x, width}}) => [seconds(x), seconds(Number(x) + Number(width))])]));
    assert.deepEqual(used, {weights: [[0, 16]], activations: [[0, 14], [2, 10]], gradients: [[4, 16]], slot: [[0, 2], [6, 14], [0, 4], [6, 10]],
      scratch: [[0, 14]], "all smaller items": [[0, 16]], "in memory of others, at other times": [[4, 6]]});
    assert.match(main.html(), /One rank of 1: 8.00 GiB, fits into 16.0 GiB.*&lt;\/script&gt;/);
  },
});

for (const [name, check] of Object.entries(checks)) {
  try {
    check();
  } catch (error) {
    console.error(`${name}: ${error.stack}`);
    process.exitCode = 1;
  }
}
console.log(`${Object.keys(checks).length} checks of pages`);
