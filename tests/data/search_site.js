// Asks the search of the documentation site what a reader would be shown: node search_site.js HTML-FOLDER QUESTION...
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const [folder, ...questions] = process.argv.slice(2);
const page = { addEventListener() {}, documentElement: { dataset: { content_root: "./" } }, querySelector: () => null, getElementById: () => null };
const kept = { setItem() {}, getItem: () => null, removeItem() {} };
const browser = vm.createContext({ document: page, localStorage: kept, SPHINX_HIGHLIGHT_ENABLED: false, URLSearchParams, console });
browser.window = browser;
browser._ready = () => {};
const files = ["documentation_options.js", "language_data.js", "searchtools.js"].map((name) => path.join("_static", name));
for (const name of [...files, "searchindex.js"]) {
  vm.runInContext(fs.readFileSync(path.join(folder, name), "utf8"), browser, { filename: name });
}
browser.questions = questions;
const found = vm.runInContext(
  "questions.map((question) => Search._performSearch(...Search._parseQuery(question)).reverse().map((hit) => hit[0]))",
  browser,
);
process.stdout.write(JSON.stringify(found));
