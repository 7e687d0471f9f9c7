// The page of octavo plan --html. data: as app/report/memory_page.h says. From bottom to top the picture has a band for
// each item of the plan, as high as its bytes: pale where it is reserved, full where its contents are needed. Tensors
// that blocks have lie in rows of their block. Small items are one band.

const gib = bytes => bytes / 2 ** 30;
const shownGib = (bytes, digits) => `${gib(bytes).toFixed(digits)} GiB`;
const kinds = [["weights", 0], ["gathered weights", 4], ["optimizer", 3], ["gradients", 1], ["activations", 2], ["scratch", 6], ["other", 7]];
const colorOf = new Map(kinds);
const smallShare = 0.002;  // of all bytes

// The micro-batches of the step: {whole, forward, head, backward, blocks: {"block 3": {forward, backward}}}.
const end = Math.max(...data.ranges.map(range => range.end));
const microBatches = [];
let optimizer = end;  // when it begins
for (const range of data.ranges) {
  if (range.name === "micro-batch") microBatches.push({whole: range, blocks: {}});
  if (range.name === "optimizer") optimizer = range.begin;
  const batch = microBatches[microBatches.length - 1];
  if (["forward", "head", "backward"].includes(range.name)) {
    batch[range.name] = range;
    batch.part = range.name;
  }
  if (range.name.startsWith("block ")) (batch.blocks[range.name] ??= {})[batch.part] = range;
}
const block = (batch, layer) => batch.blocks[`block ${Math.min(Math.max(layer, 0), data.layers - 1)}`];
const spans = of => microBatches.flatMap(of);

function kindOf({lifetime, contents}) {
  const named = lifetime !== "one block" || contents === "gathered weights" || contents === "gradients";
  return named ? contents : "scratch";
}

// When the contents of an item are needed, by row.
function rowsOf(item) {
  const kind = kindOf(item);
  if (item.lifetime === "whole run") return [[{begin: 0, end}]];
  if (kind === "gradients" && item.lifetime === "one step") return [[{begin: microBatches[0].head.begin, end}]];
  // From a block's forward to the end of its backward.
  if (kind === "activations" && item.blocks.length) {
    return item.blocks.map(layer => spans(batch => ({begin: block(batch, layer).forward.begin, end: block(batch, layer).backward.end})));
  }
  // Slots that blocks take in turn. Weights come while the block before runs.
  if (item.blocks.length) {
    const layersOf = slot => Array.from({length: data.layers}, (_, i) => i).filter(layer => layer % item.count === slot);
    const backward = (batch, layer) => ({begin: block(batch, kind === "gradients" ? layer : layer + 1).backward.begin, end: block(batch, layer).backward.end});
    const forward = (batch, layer) => kind === "gradients" ? [] : [{begin: block(batch, layer - 1).forward.begin, end: block(batch, layer).forward.end}];
    return item.blocks.map(slot => spans(batch => layersOf(slot).flatMap(layer => [...forward(batch, layer), backward(batch, layer)])));
  }
  return [spans(batch => ({begin: kind === "gradients" ? batch.head.begin : batch.whole.begin, end: batch.whole.end}))];
}

const isSmall = item => item.bytes < smallShare * data.arena_bytes;
const order = kinds.map(([kind]) => kind);
const bands = data.items.filter(item => !isSmall(item)).map(item => ({...item, kind: kindOf(item), rows: rowsOf(item)}))
  .sort((a, b) => order.indexOf(a.kind) - order.indexOf(b.kind));
const always = {kind: "other", rows: [[{begin: 0, end}]]};
bands.push({...always, name: "all smaller items", bytes: data.items.filter(isSmall).reduce((sum, item) => sum + item.bytes, 0)},
  {...always, name: "outside of the arena, an estimate: CUDA, libraries", bytes: data.outside_bytes});

const plane = {left: 62, right: 1296, top: 34, bottom: 682};
// The device's memory is in the picture if that leaves most of the height to what is used.
const showsDevice = data.available_bytes > 0 && data.available_bytes < 1.25 * data.total_bytes;
const mostBytes = showsDevice ? Math.max(data.total_bytes, data.available_bytes) : data.total_bytes;
const x = seconds => plane.left + seconds / end * (plane.right - plane.left);
const y = bytes => plane.bottom - bytes / (1.02 * mostBytes) * (plane.bottom - plane.top);
const label = (kind, anchor, x, y, text) => svg("text", {class: kind, "text-anchor": anchor, x, y}, text);
const area = (kind, color, {begin, end}, top, bottom) => svg("rect", {class: `area ${kind} c${color}`, x: x(begin).toFixed(1), y: top.toFixed(2),
  width: Math.max(x(end) - x(begin), 0.3).toFixed(1), height: Math.max(bottom - top, 0.05).toFixed(2)});

function drawBand(band, below) {
  const color = colorOf.get(band.kind), top = y(below + band.bytes), bottom = y(below);
  const height = (bottom - top) / band.rows.length;
  const used = band.rows.flatMap((row, i) => row.map(span => area("used", color, span, bottom - (i + 1) * height, bottom - i * height)));
  const name = bottom - top < 12 ? [] : [label("label", "start", plane.left + 6, (top + bottom) / 2 + 3.7, `${band.name}  ${shownGib(band.bytes, 1)}`)];
  return svg("g", {class: "band"}, svg("title", {}, `${band.name}: ${shownGib(band.bytes, 3)}`),
    area("reserved", color, {begin: 0, end}, top, bottom), ...used, ...name, line("edge", plane.left, plane.right, top, top));
}

// What lies in the memory of other items while the head runs.
function drawOverlaid(below) {
  const bytes = data.overlaid.reduce((sum, item) => sum + item.bytes, 0);
  const names = data.overlaid.map(item => `${item.name} ${shownGib(item.bytes, 3)}`).join(", ");
  return svg("g", {class: "band"}, svg("title", {}, `in memory of others, at other times: ${names}`),
    ...spans(batch => area("used over", colorOf.get("other"), batch.head, y(below + bytes), y(below))));
}

// What runs, above the bands.
function drawPhase(name, begin, end) {
  const left = x(begin), right = x(end);
  return [line("phase", left + 1, right - 1, plane.top - 8, plane.top - 8, svg("title", {}, name)),
    ...right - left > 46 ? [label("tick", "middle", (left + right) / 2, plane.top - 14, name)] : []];
}

function picture(width) {
  plane.right = width - 14;
  const parts = axes(plane, {xs: ticks(0, 1e3 * end, Math.max(2, Math.round(width / 110))), x: ms => x(ms / 1e3), xLabel: "ms of the step, predicted",
    ys: ticks(0, gib(mostBytes), 8), y: size => y(size * 2 ** 30), yLabel: "GiB"});
  for (const {whole, head} of microBatches)
    parts.push(...drawPhase("forward", whole.begin, head.begin), ...drawPhase("head", head.begin, head.end), ...drawPhase("backward", head.end, whole.end));
  parts.push(...drawPhase("optimizer", optimizer, end));
  let below = 0, scratch;
  for (const band of bands.filter(({bytes}) => bytes > 0)) {
    if (band.kind === "scratch") scratch ??= below;
    parts.push(drawBand(band, below));
    below += band.bytes;
  }
  if (scratch !== undefined) parts.push(drawOverlaid(scratch));
  if (showsDevice) {
    const limit = y(data.available_bytes);
    parts.push(line("limit", plane.left, plane.right, limit, limit),
      label("tick", "end", plane.right - 4, limit + 13, `the device's ${shownGib(data.available_bytes, 1)}`));
  }
  return svg("svg", {viewBox: `0 0 ${width} 720`, role: "img", "aria-label": "memory over a step", id: "memory"}, ...parts);
}

const figure = html("figure", {class: "chart wide"});
const draw = () => figure.replaceChildren(html("div", {class: "legend"}, ...kinds.map(([label, color]) => html("span", {}, swatch(color, "box"), label))),
  picture(figure.clientWidth ? figure.clientWidth - 24 : 1310));
const available = shownGib(data.available_bytes, 1);
const fits = !data.available_bytes ? "on a device whose memory is not known" : data.fits ? `fits into ${available}` : `does not fit into ${available}`;
const leftOut = data.left_out > 0 ? `${data.left_out} micro-batches like the second are left out. ` : "";
const row = (item, needed) => [item.name, item.count, gib(item.bytes).toFixed(3), `${(100 * item.bytes / data.total_bytes).toFixed(1)}%`, needed];
show(`Memory of ${data.name}`,
  html("p", {class: "soft"}, `One rank of ${data.ranks}: ${shownGib(data.total_bytes, 2)}, ${fits}. ${leftOut}Pale: reserved for the whole run; ` +
    "full: its contents are needed, by the predicted times of the blocks."),
  figure,
  html("h2", {}, "Items"),
  table("items", ["memory, one rank", ...["count", "GiB", "share"].map(numeric), "needed for"],
    [...data.items.map(item => row(item, item.lifetime)), ...data.overlaid.map(item => row(item, "uses memory of the items above, at other times"))]));
addEventListener("resize", draw);
draw();
