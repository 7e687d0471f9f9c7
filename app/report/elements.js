"use strict";
// Elements, numbers, axes and tables of all pages. The page's document is `data`. Text that comes from it becomes text
// nodes and attributes alone, so that nothing in it is markup.

const data = JSON.parse(document.getElementById("document").textContent);
const svgNamespace = document.querySelector("svg").namespaceURI;

// Control characters, and those that change the direction of text, become visible escapes.
function printable(text) {
  const unprintable = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
  return String(text).replace(unprintable, c => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function fill(element, attributes, children) {
  for (const name in attributes) element.setAttribute(name, printable(attributes[name]));
  element.append(...children.map(child => child instanceof Node ? child : printable(child)));
  return element;
}
const html = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(svgNamespace, name), attributes, children);

// Number of colors, and of lines that are told apart.
const kColors = 8;
// The classes of the color and of the dashes that tell a run from the others.
const look = color => color === "muted" ? "muted" : `c${color % kColors} d${Math.floor(color / kColors) % 4}`;
const swatch = (color, shape = "") => html("i", {class: `swatch ${shape} ${look(color)}`});
function button(text, pressed, action, ...before) {
  const made = html("button", {type: "button", "aria-pressed": pressed}, ...before, text);
  made.addEventListener("click", action);
  return made;
}

// A cell is a text, an element, or {text, class}. The class of a head is that of the cells below it. A narrow page shows
// the rows of a `kind` below each other: "cards", a line for each cell with its head, or "lines", the cells in a row.
function table(id, heads, rows, rowClass = () => "", kind = "") {
  const cell = (name, value, kind = "", more = {}) => html(name, {class: value.class ?? kind, ...more}, value.text ?? value);
  const head = i => kind === "cards" ? {"data-head": heads[i].text ?? heads[i]} : {};
  return html("div", {class: "scroll"}, html("table", {id, ...kind && {class: kind}},
    html("tr", {}, ...heads.map(head => cell("th", head))),
    ...rows.map(row => html("tr", {class: rowClass(row)}, ...row.map((value, i) => cell("td", value, heads[i].class, head(i)))))));
}
const numeric = text => ({text, class: "number"});

const units = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
const digits = (value, count) => String(+value.toPrecision(count));
// "2.3416", "16,432", "3.00e-5", and "-" for what is not there.
function longNumber(value) {
  if (!Number.isFinite(value)) return "-";
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e18) return Math.round(value).toLocaleString("en-US");
  return size > 0 && size < 1e-3 ? value.toExponential(2) : digits(value, 5);
}
// "1.2M", "2.1B".
function shortNumber(value) {
  if (!Number.isFinite(value)) return "-";
  const unit = value >= 1e4 && units.find(([size]) => value >= size);
  return unit ? digits(value / unit[0], 4) + unit[1] : digits(value, 6);
}
// The ticks of an axis have the unit, or the exponent, of the largest of them.
function tickLabel(value, largest) {
  if (value === 0) return "0";
  if (largest < 1e-2) return value.toExponential(5).replace(/\.?0*e\+?/, "e");
  const unit = largest >= 1e4 && units.find(([size]) => largest >= size);
  return unit ? digits(value / unit[0], 6) + unit[1] : digits(value, 6);
}

// About `count` ticks within [least, most], at 1, 2 or 5 times a power of ten.
function ticks(least, most, count) {
  const rough = (most - least) / count;
  if (!(rough > 0)) return [least];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => rough / power < 1.5 * factor || factor === 10);
  const first = Math.ceil(least / step - 1e-9);
  const length = Math.min(Math.floor(most / step + 1e-9) - first + 1, 4 * count);
  return Array.from({length}, (_, i) => (first + i) * step);
}
// Ticks at powers of ten, and at 2 and 5 times these where those are few.
function logTicks(least, most) {
  const decades = Math.log10(most) - Math.log10(least);
  if (decades < 1) return ticks(least, most, 5);
  const stride = Math.ceil(decades / 12);
  const found = [];
  for (let power = Math.floor(Math.log10(least)); power <= Math.log10(most); power += stride)
    for (const factor of decades < 2.5 ? [1, 2, 5] : [1]) found.push(factor * 10 ** power);
  return found.filter(tick => tick >= least && tick <= most);
}

const line = (kind, x1, x2, y1, y2, ...children) => svg("line", {class: kind, x1, x2, y1, y2}, ...children);
// Grid lines and labels of both axes of the plane from `left` and `top` to `right` and `bottom`.
function axes({left, right, top, bottom}, {xs, ys, x, y, xLabel, yLabel}) {
  const text = (kind, anchor, place, label) => svg("text", {class: kind, "text-anchor": anchor, ...place}, label);
  const largest = values => Math.max(...values.map(Math.abs));
  const middle = (top + bottom) / 2;
  return [
    ...ys.flatMap(tick => [line("grid", left, right, y(tick), y(tick)),
      text("tick", "end", {x: left - 7, y: y(tick) + 3.5}, tickLabel(tick, largest(ys)))]),
    ...xs.flatMap(tick => [line("base", x(tick), x(tick), bottom, bottom + 4),
      text("tick", "middle", {x: x(tick), y: bottom + 16}, tickLabel(tick, largest(xs)))]),
    line("base", left, right, bottom, bottom),
    text("axis", "middle", {x: (left + right) / 2, y: bottom + 32}, xLabel),
    text("axis", "middle", {transform: `translate(13 ${middle}) rotate(-90)`}, yLabel),
  ];
}

// Shows the page.
function show(title, ...children) {
  document.title = `${printable(title)} - ${document.title.split(" - ").pop()}`;
  document.querySelector("main").replaceChildren(html("h1", {}, title), ...children);
}
