// The part of a browser's DOM that the scripts of app/report need. It runs them in Node and writes the resulting page as
// HTML.
//
//     node page_dom.js PAGE.html [SCRIPT]     prints the page after its scripts, and after SCRIPT in their scope
"use strict";

const fs = require("fs");
const vm = require("vm");

const escaped = text => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");

class Node {}

class Text extends Node {
  constructor(text) {
    super();
    this.textContent = text;
  }
  html() { return escaped(this.textContent); }
}

class Element extends Node {
  constructor(name) {
    super();
    Object.assign(this, {name, attributes: {}, children: [], listeners: {}, dataset: {}, style: {}, offsetWidth: 100, namespaceURI: "svg"});
  }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(...children) {
    for (const child of children) {
      const node = child instanceof Node ? child : new Text(String(child));
      node.parent = this;
      this.children.push(node);
    }
  }
  replaceChildren(...children) {
    this.children = [];
    this.append(...children);
  }
  remove() { this.parent.children = this.parent.children.filter(child => child !== this); }
  addEventListener(event, action) { this.listeners[event] = action; }
  setPointerCapture() {}
  getBoundingClientRect() { return {left: 0, top: 0, width: this.viewBox.baseVal.width}; }
  get viewBox() { return {baseVal: {width: Number((this.attributes.viewBox ?? "0 0 1000").split(" ")[2])}}; }
  get textContent() { return this.children.map(child => child.textContent).join(""); }
  // Returns all elements in this one for which `accepts` returns true.
  all(accepts) {
    return this.children.filter(child => child instanceof Element).flatMap(child => [...accepts(child) ? [child] : [], ...child.all(accepts)]);
  }
  byId(id) { return this.all(element => element.attributes.id === id)[0]; }
  html() {
    const attributes = Object.entries(this.attributes).map(([name, value]) => ` ${name}="${escaped(value)}"`).join("");
    return `<${this.name}${attributes}>${this.children.map(child => child.html()).join("")}</${this.name}>`;
  }
}

// Runs scripts on the text of a JSON document. Returns the main element of the page, its title, and evaluate(), which
// evaluates an expression in the scope of the scripts.
function run(json, script) {
  const main = new Element("main");
  const document = {
    title: "Page - octavo",
    documentElement: new Element("html"),
    getElementById: () => ({textContent: json}),
    querySelector: name => name === "main" ? main : new Element(name),
    createElement: name => new Element(name),
    createElementNS: (namespace, name) => new Element(name),
  };
  const context = vm.createContext({document, Node, history: {state: null, replaceState() {}}, addEventListener() {}});
  vm.runInContext(script, context);
  return {main, document, evaluate: text => vm.runInContext(text, context)};
}

// Returns the JSON document and the scripts of a page.
function partsOf(page) {
  const [, json, script] = page.match(/<script id="document" type="application\/json">(.*?)<\/script>\s*<script>\n(.*?)<\/script>/s);
  return [json, script];
}

module.exports = {run, partsOf};

if (require.main === module) {
  const [path, then] = process.argv.slice(2);
  const {main, evaluate} = run(...partsOf(fs.readFileSync(path, "utf8")));
  if (then) evaluate(then);
  process.stdout.write(main.html() + "\n");
}
