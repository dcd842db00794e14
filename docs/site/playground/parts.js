// Small parts of a page: elements, a table of an answer, an error.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "for" || name === "role") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

export const button = (text, onclick, className = "") =>
  element("button", { type: "button", onclick, className }, text);

/** What a block answered: the last statement's rows as a table, or its error. */
export function answer({ results, error }) {
  const last = results.at(-1);
  if (error) {
    const code = error.code ? `ERROR ${error.code}: ` : "ERROR: ";
    return element("pre", { className: "pg-error", role: "alert" }, code + error.message);
  }
  if (!last?.columns.length) return element("p", { className: "pg-quiet" }, "done");
  return element("div", { className: "pg-table" }, table(last));
}

function table({ columns, rows }) {
  const shown = rows.slice(0, 100).map((row) =>
    element("tr", {}, ...row.map((value) => element("td", {}, value ?? element("i", {}, "null")))));
  const words = rows.length === 1 ? "1 row" : `${rows.length} rows`;
  return element("table", {},
    element("caption", {}, rows.length > shown.length ? `${words}, of which the first 100` : words),
    element("thead", {}, element("tr", {}, ...columns.map((name) => element("th", {}, name)))),
    element("tbody", {}, ...shown));
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
